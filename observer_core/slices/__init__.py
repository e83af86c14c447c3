"""From a trace to the *state*: the text a decision model reads. Training and serving build it here and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observer_core.errors import InputError
from observer_core.files import sha256_file
from observer_core.slices.v1 import render_v1
from observer_core.slices.v2 import V2
from observer_core.tokenizer import TOKENIZER_FILE, TextTokens
from observer_core.traces.trace import Trace

__all__ = ["DEFAULT_FORMAT", "State", "StateBuilder", "build_state", "v2_spec"]

DEFAULT_FORMAT = "v2"
"""Of new runs; a manifest that names none means v1."""


@dataclass(frozen=True, slots=True)
class State:
    """The state text of one trace, and whether the format cut anything away."""

    text: str
    truncated: bool


class StateBuilder:
    """Builds states as one manifest says; made once for a model, since it reads the tokenizer.

    Args:
        spec: a manifest's `slice`: `format` (`v1` when absent); for v2 also `budget` (tokens of a state) and
            `tokenizer` (sha256 of the `tokenizer.json` that counts them; not checked when absent).
        tokenizer: the folder of the model's tokenizer; v1 needs none.

    Raises:
        InputError: the format is not known to this version, the budget is no usable number, or the tokenizer is
            missing, broken or another one.
    """

    def __init__(self, spec: dict[str, Any], tokenizer: Path | None = None) -> None:
        name = spec.get("format", "v1")
        if not isinstance(name, str) or name not in FORMATS:
            raise InputError(f"unknown state format {name!r}; this version knows {', '.join(FORMATS)}")
        self._render = FORMATS[name](spec, tokenizer)

    def build(self, trace: Trace) -> State:
        """The state of one trace; equal traces give equal states, whatever was built before."""
        return State(*self._render(trace))


def build_state(trace: Trace, spec: dict[str, Any] | None = None, tokenizer: Path | None = None) -> State:
    """The state of a single trace (see `StateBuilder`), v1 without a `spec`."""
    return StateBuilder(spec or {}, tokenizer).build(trace)


def v2_spec(tokenizer: Path, budget: int) -> dict[str, Any]:
    """What a manifest's `slice` records of format v2.

    Args:
        tokenizer: the folder of the model's tokenizer, as the run keeps it.
        budget: tokens of a state: the model's window less the longest question.
    """
    return {"format": "v2", "budget": budget, "tokenizer": sha256_file(tokenizer / TOKENIZER_FILE)}


Render = Callable[[Trace], tuple[str, bool]]


def _v1(_spec: dict[str, Any], _tokenizer: Path | None) -> Render:
    return render_v1


def _v2(spec: dict[str, Any], tokenizer: Path | None) -> Render:
    budget = spec.get("budget")
    if not isinstance(budget, int) or isinstance(budget, bool):
        raise InputError(f"state format v2 needs its budget in tokens, not {budget!r}; give one or use format v1")
    if tokenizer is None:
        raise InputError("state format v2 counts with a model's tokenizer; name a run, or use format v1")
    tokens = TextTokens(tokenizer)
    known = spec.get("tokenizer")
    if known is not None and sha256_file(tokenizer / TOKENIZER_FILE) != known:
        raise InputError(
            f"{tokenizer / TOKENIZER_FILE} is not the tokenizer these states were made with; copy the run again"
        )
    return V2(tokens, budget).render


FORMATS: dict[str, Callable[[dict[str, Any], Path | None], Render]] = {"v1": _v1, "v2": _v2}
"""A new state format is one module here and one line in this table."""
