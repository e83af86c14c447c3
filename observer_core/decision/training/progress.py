"""How long work tells what it is doing, without knowing who listens."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""What is being done, and the fraction of the whole that is done (0..1).

The text may go on with a detail that changes all the time, after a colon and a blank: `training: step 3/40, loss 0.61`.
A listener that writes lines writes one when what stands before it changes, and else now and then (`headline`).
"""

MetricSink = Callable[[str, float, int], None]
"""Metric, value, step: an MLflow run's or a terminal's."""


def no_progress(doing: str, fraction: float) -> None:
    """Nobody listens."""


def no_metric(name: str, value: float, step: int) -> None:
    """Nobody listens."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """A progress whose 0..1 is `start`..`end` of another."""
    return lambda doing, fraction: progress(doing, start + (end - start) * fraction)


def headline(doing: str) -> str:
    """What is being done, without the detail that changes all the time."""
    return doing.partition(": ")[0]


def detail(doing: str, separator: str) -> str:
    """The detail, after a separator; empty when there is none."""
    _, colon, rest = doing.partition(": ")
    return separator + rest if colon else ""


def minutes(seconds: float) -> str:
    """A time to wait, as `0:07` or `1:02:45`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
