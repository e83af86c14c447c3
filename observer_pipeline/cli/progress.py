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

    def show(what: str, fraction: float) -> None:
        nonlocal last
        now, head = time.monotonic(), headline(what)
        if head != last[0] or fraction >= 1 or now - last[1] >= _SECONDS_BETWEEN_LINES:
            last = (head, now)
            print(f"{head}: {fraction:.0%}{detail(what, ', ')}", file=sys.stderr, flush=True)

    return show
