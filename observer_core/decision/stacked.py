"""The family `stacked`: a decision model's logit and the baseline's features in one logistic layer.

The model reads what was said, the features count what happened (failed calls, repeated calls, an answer that no
evidence supports); each knows things the other does not. The layer is a few dozen numbers, so a stacked run costs what
its model costs. It carries the run of its model, and is served without torch wherever that one is. `stack` fits it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.baseline import FEATURES, featurise
from observer_core.decision.calibration import logit, sigmoid
from observer_core.decision.scorer import RawScore, RawScorer
from observer_core.errors import InputError
from observer_core.traces.trace import Trace

LAYER_FILE = "stacked.json"


@dataclass(frozen=True, slots=True)
class StackedLayer:
    """P(wrong) = sigmoid(model · logit(p) + Σ coefficient · (feature − mean) / scale + intercept), p the model's own.

    `mean`, `scale` and `coefficient` are by feature name.
    """

    model: float
    mean: dict[str, float]
    scale: dict[str, float]
    coefficient: dict[str, float]
    intercept: float

    def p_wrong_raw(self, p_model: NDArray[np.float64], traces: Sequence[Trace]) -> NDArray[np.float64]:
        """P(wrong) before calibration, shape (traces,)."""
        mean, scale, coefficient = (
            np.array([values[name] for name in FEATURES]) for values in (self.mean, self.scale, self.coefficient)
        )
        features = (featurise(traces) - mean) / scale @ coefficient
        return sigmoid(self.model * logit(p_model) + features + self.intercept)

    def save(self, folder: Path) -> None:
        """Write `stacked.json` into `folder`."""
        (folder / LAYER_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "StackedLayer":
        """Read `stacked.json` from `folder`.

        Raises:
            InputError: missing, not JSON, other features than this version's, or a number that is not usable.
        """
        file = folder / LAYER_FILE
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{file} is missing; copy the run again") from None
        except ValueError as error:
            raise InputError(f"{file} is not JSON ({error}); copy the run again") from error
        try:
            columns = {name: _features(body[name], name) for name in ("mean", "scale", "coefficient")}
            layer = cls(model=_number(body["model"]), intercept=_number(body["intercept"]), **columns)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file} is not a stacked layer of this version ({error}); stack anew") from error
        if not all(layer.scale.values()):
            raise InputError(f"{file} has a scale of 0; stack anew")
        return layer


def stacked_scorer(layer: StackedLayer, model: RawScorer) -> RawScorer:
    """The layer over its model's raw scorer; the model's other answers are passed on."""

    def score(traces: Sequence[Trace], *, only_deciding: bool = False) -> list[RawScore]:
        scores = model(traces, only_deciding=only_deciding)
        stacked = layer.p_wrong_raw(np.array([s.p_wrong_raw for s in scores]), traces).tolist()
        return [RawScore(p, s.truncated, s.answers) for p, s in zip(stacked, scores, strict=True)]

    return score


def _features(values: dict[str, Any], name: str) -> dict[str, float]:
    if set(values) != set(FEATURES):
        raise ValueError(f"'{name}' has other features than this version")
    return {feature: _number(values[feature]) for feature in FEATURES}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)
