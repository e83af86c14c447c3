"""What the demo shows: progress while it runs, and one table at its end."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(slots=True)
class Step:
    """One step of the loop: what it made, how long it took, where to look."""

    name: str
    made: str = ""
    where: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """A promise of the demo: whether it was kept, with the numbers it rests on."""

    promise: str
    kept: bool
    numbers: str


@dataclass(slots=True)
class Board:
    """Collects steps and checks; on a terminal a bar per step, elsewhere plain lines on stderr."""

    total: int
    steps: list[Step] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    _progress: Progress | None = None
    _task: TaskID | None = None
    _said: str = ""

    def __enter__(self) -> "Board":
        if sys.stderr.isatty():
            self._progress = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
                console=Console(stderr=True),
            ).__enter__()  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Time a step; the block fills in `made` and `where`. A step that raises is not entered."""
        number = f"[{len(self.steps) + 1}/{self.total}]"
        if self._progress is not None:
            self._task = self._progress.add_task(f"{number} {name}", total=1.0)
        else:
            print(f"{number} {name} …", file=sys.stderr, flush=True)
        step = Step(name)
        started = time.monotonic()
        yield step
        step.seconds = time.monotonic() - started
        self.steps.append(step)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=1.0, description=f"{number} {name}: {step.made}")
        else:
            print(f"{number} {name}: {step.made} ({step.seconds:.0f} s)", file=sys.stderr, flush=True)

    def doing(self, what: str, fraction: float | None = None) -> None:
        """Say what the step under way is doing now."""
        if self._progress is not None and self._task is not None:
            name = f"[{len(self.steps) + 1}/{self.total}] {what}"
            self._progress.update(self._task, description=name, completed=fraction)
        elif what != self._said:
            self._said = what
            print(f"      {what}", file=sys.stderr, flush=True)

    def check(self, promise: str, kept: bool, numbers: str) -> None:
        """Enter a promise and whether it was kept."""
        self.checks.append(Check(promise, kept, numbers))

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.kept]

    def print(self, title: str) -> None:
        """The one table at the end: steps, then promises."""
        table = Table(title=title, title_justify="left", show_lines=False, expand=False)
        for column in ("step", "made", "time", "where to look"):
            table.add_column(column, justify="right" if column == "time" else "left", overflow="fold")
        for step in self.steps:
            table.add_row(step.name, step.made, f"{step.seconds:.0f} s", step.where)
        table.add_section()
        for check in self.checks:
            table.add_row("[green]kept[/]" if check.kept else "[red]BROKEN[/]", check.promise, "", check.numbers)
        Console(highlight=False, width=None if sys.stdout.isatty() else 180).print(table)
