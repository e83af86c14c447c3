"""A process that does nothing but serve: its event loop, and how Python runs its threads and collects its garbage."""

import gc
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

_SWITCH_SECONDS = 0.001
_COLLECT_AFTER = (10_000, 10, 20)


def tune() -> None:
    """Fit the interpreter to the service's threads.

    One that comes back from the disk waits at most a millisecond, not five, for one that computes. What exists now
    stays, so the collector need not look at it; what is received has no cycles, so it looks seldom, but never at so
    much at once that traces wait.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def serve(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end as what this process is for."""
    tune()
    uvloop.run(work)
