"""The no-model baseline: process features and evidence overlap with a logistic regression.

It costs microseconds and needs no weights beyond a few dozen numbers, so a decision model that does not beat it is not
worth serving. The features follow the cheap baselines of the literature (answer length, refusals, tool errors, loops,
and the share of the answer that the evidence supports); `docs/baseline.md` says what each of `FEATURES` is and why.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.calibration import sigmoid
from observer_core.errors import InputError
from observer_core.traces.trace import ABSENT, ToolCall, Trace

WEIGHTS_FILE = "baseline.json"

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_REFUSAL = re.compile(
    r"\b(?:not (?:found|available|mentioned|specified|enough)|unknown|unable|unclear|cannot|can't|could not|couldn't|"
    r"no (?:answer|information|evidence|results?)|(?:do|does|did)(?: not|n't) (?:know|say|mention|find)|n/?a)\b",
    re.IGNORECASE,
)
_CLOSED = re.compile(
    r"^(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|which of|am)\b", re.IGNORECASE
)
_OPEN_WORDS = re.compile(r"\b(?:who|what|which|when|where|how|why|whose)\b", re.IGNORECASE)
_QUANTITY = re.compile(
    r"\b(?:how (?:many|much|old|long|far|tall)|when|what year|which year|what date)\b", re.IGNORECASE
)
_STOP_WORDS = """
a an and are as at be by did do does for from had has have he her his how in is it its of on or she that the their they
this to was were what when where which who whose why will with would
"""
_STOP = frozenset(_STOP_WORDS.split())


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if word not in _STOP]


def _share(part: Sequence[str], whole: frozenset[str]) -> float:
    return sum(word in whole for word in part) / len(part) if part else 0.0


def _failed(call: ToolCall) -> bool:
    return call.status is not ABSENT and call.status != "ok"


def _distinct_calls(calls: list[ToolCall]) -> int:
    return len({(call.name, repr(call.args)) for call in calls})


@dataclass(frozen=True, slots=True)
class _View:
    """A trace with its texts taken apart once."""

    trace: Trace
    question: list[str]
    answer: list[str]
    evidence: frozenset[str]
    evidence_text: str

    @classmethod
    def of(cls, trace: Trace) -> "_View":
        text = "\n".join(trace.evidence).casefold()
        return cls(trace, _words(trace.question), _words(trace.final_answer), frozenset(_words(text)), text)

    @property
    def closed(self) -> bool:
        question = self.trace.question.strip()
        return bool(_CLOSED.match(question)) and not _OPEN_WORDS.match(question)

    @property
    def answers_yes_or_no(self) -> bool:
        return self.trace.final_answer.strip().casefold().rstrip(".") in {"yes", "no"}

    @property
    def numbers_unsupported(self) -> float:
        numbers = _NUMBER.findall(self.trace.final_answer)
        return sum(number not in self.evidence_text for number in numbers) / len(numbers) if numbers else 0.0


FEATURES: dict[str, Callable[[_View], float]] = {
    "log_answer_words": lambda v: math.log1p(len(v.answer)),
    "empty_answer": lambda v: float(not v.trace.final_answer.strip()),
    "refusal": lambda v: float(bool(_REFUSAL.search(v.trace.final_answer))),
    "yes_no_to_open_question": lambda v: float(v.answers_yes_or_no and not v.closed),
    "no_yes_no_to_closed_question": lambda v: float(v.closed and not v.answers_yes_or_no),
    "quantity_without_number": lambda v: float(
        bool(_QUANTITY.search(v.trace.question)) and not _NUMBER.search(v.trace.final_answer)
    ),
    "numbers_not_in_evidence": lambda v: v.numbers_unsupported,
    "answer_words_in_evidence": lambda v: _share(v.answer, v.evidence),
    "answer_verbatim_in_evidence": lambda v: float(
        bool(v.answer) and v.trace.final_answer.strip().casefold() in v.evidence_text
    ),
    "question_words_in_evidence": lambda v: _share(v.question, v.evidence),
    "answer_words_in_question": lambda v: _share(v.answer, frozenset(v.question)),
    "no_evidence": lambda v: float(not v.trace.evidence),
    "log_evidence_words": lambda v: math.log1p(len(v.evidence)),
    "tool_calls": lambda v: math.log1p(len(v.trace.tool_calls)),
    "failed_calls": lambda v: math.log1p(sum(map(_failed, v.trace.tool_calls))),
    "repeated_calls": lambda v: math.log1p(len(v.trace.tool_calls) - _distinct_calls(v.trace.tool_calls)),
    "last_call_failed": lambda v: float(bool(v.trace.tool_calls) and _failed(v.trace.tool_calls[-1])),
}
"""Name → feature of a trace; each finite for every trace, whatever is missing in it."""


def featurise(traces: Sequence[Trace]) -> NDArray[np.float64]:
    """The features of each trace, shape (traces, features), in the order of `FEATURES`."""
    views = map(_View.of, traces)
    rows = [[feature(view) for feature in FEATURES.values()] for view in views]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(FEATURES))


@dataclass(frozen=True, slots=True)
class BaselineModel:
    """A logistic regression over standardised features; `mean`, `scale` and `coefficient` are by feature name."""

    mean: dict[str, float]
    scale: dict[str, float]
    coefficient: dict[str, float]
    intercept: float

    @classmethod
    def fit(cls, traces: Sequence[Trace], wrong: NDArray[np.bool_], weight: NDArray[np.float64]) -> "BaselineModel":
        """Fit on labeled traces (needs scikit-learn).

        Args:
            wrong: shape (traces,), whether each counts as wrong.
            weight: shape (traces,), what each trace stands for.

        Raises:
            InputError: only one class.
        """
        from sklearn.linear_model import LogisticRegression

        if len(set(wrong.tolist())) < 2:
            raise InputError("the training traces are all of one class; label some wrong and some correct ones")
        x = featurise(traces)
        mean = np.average(x, axis=0, weights=weight)
        scale = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
        scale[scale == 0] = 1.0
        fitted = LogisticRegression(C=1.0, max_iter=1000).fit((x - mean) / scale, wrong, sample_weight=weight)
        named = [dict(zip(FEATURES, map(float, values), strict=True)) for values in (mean, scale, fitted.coef_[0])]
        return cls(*named, intercept=float(fitted.intercept_[0]))

    def p_wrong_raw(self, traces: Sequence[Trace]) -> NDArray[np.float64]:
        """P(wrong) before calibration, shape (traces,)."""
        mean, scale, coefficient = (
            np.array([values[name] for name in FEATURES]) for values in (self.mean, self.scale, self.coefficient)
        )
        logit = (featurise(traces) - mean) / scale @ coefficient + self.intercept
        return sigmoid(logit)

    def save(self, folder: Path) -> None:
        """Write `baseline.json` into `folder`."""
        body = {
            "intercept": self.intercept,
            "features": {
                name: {"mean": self.mean[name], "scale": self.scale[name], "coefficient": self.coefficient[name]}
                for name in FEATURES
            },
        }
        (folder / WEIGHTS_FILE).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "BaselineModel":
        """Read `baseline.json` from `folder`.

        Raises:
            InputError: missing, not JSON, other features than this version's, or a number that is not finite.
        """
        file = folder / WEIGHTS_FILE
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            columns = [
                {name: float(body["features"][name][part]) for name in FEATURES}
                for part in ("mean", "scale", "coefficient")
            ]
            model = cls(*columns, intercept=float(body["intercept"]))
        except FileNotFoundError:
            raise InputError(f"{file} is missing; copy the run again") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is not a baseline of this version ({error}); train it anew") from error
        if set(body["features"]) != set(FEATURES):
            raise InputError(f"{file} has other features than this version; train it anew")
        numbers = [model.intercept, *(value for column in columns for value in column.values())]
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"{file} holds a number that is not finite; train it anew")
        return model
