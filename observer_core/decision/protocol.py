"""What every decision model and every scorer looks like from outside.

A `DecisionModel` answers typed questions about state texts; a `Scorer` gives a trace's calibrated probability that
its answer was wrong. The service, the pipeline and the evaluation know only these two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from observer_core.questions import Question
from observer_core.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Answer:
    """A distribution over a question's options: noul `false`, `true`; choice its names; score `0`..`n-1`."""

    type: str
    probabilities: dict[str, float]

    @property
    def noul(self) -> float:
        """P(true) of a noul."""
        return self.probabilities["true"]

    def to_json(self) -> dict[str, Any]:
        """The System One answer object without legend and confidence."""
        if self.type == "noul":
            return {"type": "noul", "noul": self.noul}
        best = max(self.probabilities, key=self.probabilities.__getitem__)
        if self.type == "choice":
            return {"type": "choice", "choice": best, "probabilities": self.probabilities}
        mean = sum(int(level) * p for level, p in self.probabilities.items())
        return {"type": "score", "score": mean, "probabilities": self.probabilities}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a decision model says of one state: its answers, and whether it saw the state cut."""

    answers: dict[str, Answer]
    truncated: bool


class DecisionModel(Protocol):
    """Answers typed questions about states; one answer never depends on the other questions or states."""

    def read(self, states: Sequence[str], questions: Mapping[str, Question]) -> list[Reading]:
        """One reading per state, in order; `answer` without the flag."""
        ...

    def answer(self, states: Sequence[str], questions: Mapping[str, Question]) -> list[dict[str, Answer]]:
        """One dict (question id → answer) per state, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """What a scorer says of one trace. Probabilities in [0, 1]; `answers` are the other questions' answer objects."""

    p_wrong_raw: float
    p_wrong: float
    state_truncated: bool = False
    answers: dict[str, Any] = field(default_factory=dict)


class Scorer(Protocol):
    """Scores traces. `model` and `model_version` go into every decision record."""

    model: str
    model_version: str

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        """One score per trace, in order; may be called from one thread at a time."""
        ...
