"""Progress of long work in Dagster's log: a line now and then, not one per step."""

from collections.abc import Callable

import dagster as dg

from observer_core.decision.training.progress import detail, headline

STEP = 0.1


def log_progress(context: dg.AssetExecutionContext, who: str) -> Callable[[str, float], None]:
    """A callback (what is being done, fraction 0..1) that logs a line per tenth and per new piece of work."""
    last: tuple[str, float] | None = None

    def progress(what: str, fraction: float) -> None:
        nonlocal last
        head = headline(what)
        if last is None or head != last[0] or fraction >= 1 or fraction - last[1] >= STEP:
            last = (head, fraction)
            context.log.info(f"{who}: {head}, {fraction:.0%}{detail(what, ', ')}")

    return progress
