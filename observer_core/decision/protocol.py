"""What every decision model and every scorer looks like from outside.

A `DecisionModel` answers typed questions about state texts; a `Scorer` gives a trace's calibrated probability that
its answer was wrong. The service, the pipeline and the evaluation know only these two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from observer_core.decision.confidence import choice_confidence, score_confidence
from observer_core.errors import InputError
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

    @property
    def confidence(self) -> float | None:
        """System One's confidence, from the probabilities; a noul has none."""
        if self.type == "noul":
            return None
        formula = choice_confidence if self.type == "choice" else score_confidence
        return formula(list(self.probabilities.values()))

    def to_json(self) -> dict[str, Any]:
        """The System One answer object without a score's legend."""
        if self.type == "noul":
            return {"type": "noul", "noul": self.noul}
        best = max(self.probabilities, key=self.probabilities.__getitem__)
        if self.type == "choice":
            return {
                "type": "choice",
                "choice": best,
                "probabilities": self.probabilities,
                "confidence": self.confidence,
            }
        mean = sum(int(level) * p for level, p in self.probabilities.items())
        return {"type": "score", "score": mean, "probabilities": self.probabilities, "confidence": self.confidence}


class ContextOverflowError(InputError):
    """A state, question or set of options does not fit the model's window."""


class NotRunError(InputError):
    """A scorer that cannot be asked here (no key, nothing configured). Reports say 'not run' with this reason."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a decision model says of one state: its answers, and whether it saw the state cut."""

    answers: dict[str, Answer]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One state with its questions, checked and turned into tokens: what remains is arithmetic.

    Args:
        questions: id → question, in the order of the answers.
        input_tokens: what a caller is charged for: the state once, and each question.
        cost: tokens the model computes, what batches are budgeted by.
        truncated: the state was cut.
        prepared: the family's own form.
    """

    questions: Mapping[str, Question]
    input_tokens: int
    cost: int
    truncated: bool
    prepared: Any


class DecisionModel(Protocol):
    """Answers typed questions about states; one answer never depends on the other questions or states.

    Not thread-safe: `plan` may be called from any one thread, `run` from any other one.
    """

    def plan(self, state: Any, questions: Mapping[str, Question], *, strict: bool = False) -> Plan:
        """Make one request ready.

        Args:
            state: a text, or any JSON value; the family decides how that reads as text.
            strict: refuse a state that does not fit instead of cutting it.

        Raises:
            ContextOverflowError: the questions do not fit the window, or, with `strict`, the state does not.
            InputError: a question is not well formed.
        """
        ...

    def run(self, plans: Sequence[Plan]) -> list[Reading]:
        """One reading per plan, in order.

        Raises:
            ObserverError: the model gave a number that is not finite.
        """
        ...


def read(model: DecisionModel, states: Sequence[Any], questions: Mapping[str, Question]) -> list[Reading]:
    """The same questions about several states (see `DecisionModel.plan` and `run`)."""
    return model.run([model.plan(state, questions) for state in states])


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
