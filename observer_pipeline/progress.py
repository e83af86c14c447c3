"""Progress of long work in Dagster's log: a line now and then, not one per step."""

from collections.abc import Callable

import dagster as dg

STEP = 0.1


def log_progress(context: dg.AssetExecutionContext, who: str) -> Callable[[str, float], None]:
    """A callback (what is being done, fraction 0..1) that logs a line per tenth and per new piece of work."""
    last: tuple[str, float] | None = None

    def progress(what: str, fraction: float) -> None:
        nonlocal last
        if last is None or what != last[0] or fraction >= 1 or fraction - last[1] >= STEP:
            last = (what, fraction)
            context.log.info(f"{who}: {what}, {fraction:.0%}")

    return progress
