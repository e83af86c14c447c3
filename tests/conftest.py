"""What all tests share: one thread each, and one Phoenix."""

import os

from phoenix_server import phoenix_url  # noqa: F401, imported elsewhere again it would be another server

# Several processes share the cores, and threads of work as small as in tests wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
