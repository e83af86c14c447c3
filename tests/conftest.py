"""Tests compute on one thread: several processes share the cores, and threads of work this small wait for each other."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
