"""From a trace to the *state*: the text a decision model reads. Training and serving build it here and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from observer_core.errors import InputError
from observer_core.slices.v1 import render_v1
from observer_core.traces.trace import Trace

# A new state format is one module here and one line in this table.
FORMATS: dict[str, Callable[[Trace], tuple[str, bool]]] = {"v1": render_v1}


@dataclass(frozen=True, slots=True)
class State:
    """The state text of one trace, and whether the format cut anything away."""

    text: str
    truncated: bool


def build_state(trace: Trace, slice_spec: dict[str, Any] | None = None) -> State:
    """The state of `trace` in the format a manifest's `slice` names (`{"format": "v1"}` when absent).

    Raises:
        InputError: the format is not known to this version.
    """
    name = (slice_spec or {}).get("format", "v1")
    if name not in FORMATS:
        raise InputError(f"unknown state format {name!r}; this version knows {', '.join(FORMATS)}")
    text, truncated = FORMATS[name](trace)
    return State(text, truncated)
