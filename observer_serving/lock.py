"""Who owns the state folder: two services over one log would decide twice."""

import fcntl
import os
from pathlib import Path

LOCK_FILE = "lock"


def hold(folder: Path) -> int | None:
    """Hold the folder; a descriptor to close, `None` when another process holds it."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
