"""Independent work side by side, a core each.

Several cores over one row of a small model wait for each other after every operation; one core over a row of its own
waits for nobody. So whoever has at least as many rows as cores spreads the rows, not the operations.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Lanes:
    """Threads that stay, for functions that spend their time outside the interpreter.

    Args:
        count: how many threads.
        prepare: called once in each of them before anything else; all have called it when the constructor returns.
    """

    def __init__(self, count: int, prepare: Callable[[], object] = lambda: None) -> None:
        self.count = count
        all_ready = threading.Barrier(count + 1)

        def begin() -> None:
            prepare()
            all_ready.wait()

        self._pool = ThreadPoolExecutor(count, "lane", initializer=begin)
        for _ in range(count):
            self._pool.submit(int)  # none is idle before the barrier, so that each starts a thread
        all_ready.wait()

    def spread(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """As `map`; few items are done one by one by the caller, each with all cores: that is sooner ready."""
        return self.map(work, items) if 2 * len(items) > self.count else [work(item) for item in items]

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`work` of every item, in their order; begun in their order, so put the longest first.

        Raises:
            Exception: what `work` raised.
        """
        return list(self._pool.map(work, items))
