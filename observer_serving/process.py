"""A process that does nothing but serve: its event loop, and how Python runs its threads and collects its garbage."""

import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

_START_SWITCH_SECONDS, _SWITCH_SECONDS = 0.0003, 0.001
_COLLECT_AFTER = (60_000, 4, 20)
_MOST_FILES = 1 << 16
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_MMAP_BYTES, _KEPT_BYTES = 32 << 20, 128 << 20


def begin() -> None:
    """What a start needs, before it imports and builds.

    Nothing of that is garbage, so the collector rests until `tune`. Importing keeps the interpreter busy: threads that
    hash files and load models, which need it for moments only, wait for it a third of a millisecond, not five. NumPy's
    threads, for which nothing here has work, would spin on the other cores when they are made.
    """
    gc.disable()
    _open_many_files()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.setswitchinterval(_START_SWITCH_SECONDS)


def tune() -> None:
    """Fit the interpreter and the allocator to the service.

    A thread that comes back from the disk waits at most a millisecond, not five, for one that computes. What exists now
    stays, so the collector need not look at it; what is received has no cycles, so it looks seldom, but never at so
    much at once that traces wait.
    """
    _keep_freed_memory()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()
    gc.enable()
    gc.set_threshold(*_COLLECT_AFTER)


def _keep_freed_memory() -> None:
    """Let glibc reuse the memory of large requests, where it would give it back and fault it in anew for the next."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _open_many_files() -> None:
    """As many files and connections as a busy service needs, where the system hands out fewer by default and lets a
    process ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS names no limit and has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def serve(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end as what this process is for."""
    tune()
    uvloop.run(work)
