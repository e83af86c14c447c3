"""Progress of long work: a bar on a terminal, plain lines elsewhere; on stderr, so that stdout stays parseable."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from observer_core.decision.training.progress import detail, headline

_SECONDS_BETWEEN_LINES = 5.0


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Yields a function to call with (what is being done, fraction done)."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def show(what: str, fraction: float) -> None:
            bar.update(task, description=what, completed=fraction)

        yield show


def _lines() -> Callable[[str, float], None]:
    last = ("", 0.0)
    began = (0.0, 0.0)  # when this piece of work was first heard of, and how much of it was done then

    def show(what: str, fraction: float) -> None:
        nonlocal last, began
        now, head = time.monotonic(), headline(what)
        if head != last[0]:
            began = (now, fraction)
        if head != last[0] or fraction >= 1 or now - last[1] >= _SECONDS_BETWEEN_LINES:
            last = (head, now)
            # Work that tells its own pace needs no second guess.
            left = detail(what, ", ") or _left(now - began[0], fraction - began[1], fraction)
            print(f"{head}: {fraction:.0%}{left}", file=sys.stderr, flush=True)

    return show


def _left(seconds: float, progressed: float, fraction: float) -> str:
    """How long the rest will take at the pace so far; nothing before there is a pace."""
    if progressed <= 0 or not 0 < fraction < 1:
        return ""
    left = round(seconds / progressed * (1 - fraction))
    return f", about {left // 60} min {left % 60:02} s left" if left >= 60 else f", about {left} s left"
