"""Each of the processes that share the cores computes on one thread; two would only wait for each other."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
