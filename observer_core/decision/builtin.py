"""The built-in heuristic: a scorer for the first day, before anything has been trained.

A logistic combination of a few baseline features whose signs follow from their meaning: refusals, empty or rambling
answers, failed or repeated tool calls and claims without support raise the score. The weights are chosen by hand, not
fitted; the score ranks a little, its level means nothing. Every decision made with it says so (`model: builtin`).
"""

from collections.abc import Sequence

import numpy as np

from observer_core.decision.baseline import FEATURES, featurise
from observer_core.decision.calibration import sigmoid
from observer_core.decision.protocol import Score
from observer_core.traces.trace import Trace

_INTERCEPT = -1.5
_WEIGHTS = {
    "log_answer_words": 0.5,
    "empty_answer": 3.0,
    "refusal": 2.0,
    "yes_no_to_open_question": 1.5,
    "no_yes_no_to_closed_question": 1.0,
    "quantity_without_number": 1.0,
    "numbers_not_in_evidence": 1.0,
    "no_evidence": 0.5,
    "answer_verbatim_in_evidence": -1.0,
    "answer_words_in_evidence": -0.5,
    "failed_calls": 1.0,
    "repeated_calls": 1.0,
    "last_call_failed": 0.5,
}


class BuiltinScorer:
    """Scores without a run directory; `p_wrong` is the raw score, since nothing was there to calibrate it on."""

    model = "builtin"
    model_version = "builtin-1"

    def __init__(self) -> None:
        self._weights = np.array([_WEIGHTS.get(name, 0.0) for name in FEATURES])

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        """One score per trace."""
        return [Score(p, p) for p in sigmoid(featurise(traces) @ self._weights + _INTERCEPT).tolist()]
