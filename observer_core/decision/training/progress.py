"""How long work tells what it is doing, without knowing who listens."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""What is being done, and the fraction of the whole that is done (0..1)."""

MetricSink = Callable[[str, float, int], None]
"""Metric, value, step: an MLflow run's or a terminal's."""


def no_progress(doing: str, fraction: float) -> None:
    """Nobody listens."""


def no_metric(name: str, value: float, step: int) -> None:
    """Nobody listens."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """A progress whose 0..1 is `start`..`end` of another."""
    return lambda doing, fraction: progress(doing, start + (end - start) * fraction)
