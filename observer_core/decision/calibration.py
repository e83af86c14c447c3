"""Calibration: from a model's raw probability to one that means what it says.

How a manifest's calibration is applied; `calibration_fit` chooses and fits one. With s = logit(p_raw):

| method | parameters | p |
|---|---|---|
| `none` | | p_raw |
| `temperature` | `temperature` | sigmoid(s / T); only stretches around 0.5 and cannot mend a bias |
| `platt` | `slope`, `bias` | sigmoid(slope · s + bias); J. Platt, "Probabilistic outputs …", 1999 |
| `isotonic` | `x`, `y`, `bias` | sigmoid(logit(f(s)) + bias), f linear through the points (x, y), level outside |

Manifests of the seed system carry `temperatures` instead: p = sigmoid(logit(clamp(p_raw, 1e-6)) / T).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from observer_core.errors import InputError
from observer_core.rundir import Calibration, Manifest

CLAMP = 1e-6
"""Probabilities are kept this far from 0 and 1 before the logit."""
TIE_BREAK = 1e-6
"""How much of the raw probability is mixed into an isotonic one, so that its level parts keep the model's ranking."""

Array = NDArray[np.float64]


def logit(p: Array) -> Array:
    """log(p / (1 − p)) with p clamped to [1e-6, 1 − 1e-6]."""
    p = np.clip(p, CLAMP, 1 - CLAMP)
    return np.log(p / (1 - p))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x), without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def calibrate(p_raw: Array, manifest: Manifest) -> Array:
    """`p_wrong` from `p_wrong_raw` (shape kept): by the manifest's `calibration`, else its `temperatures`, else raw.

    Raises:
        InputError: the method is not known, or a parameter is missing or not a usable number.
    """
    if manifest.calibration is not None:
        return apply_calibration(p_raw, manifest.calibration)
    temperature = manifest.temperatures.get(manifest.decision_question)
    return p_raw if temperature is None else _temperature(p_raw, {"temperature": temperature})


def apply_calibration(p_raw: Array, calibration: Calibration) -> Array:
    """Calibrated probabilities, shape kept; never reverses the order of two raw ones.

    Raises:
        InputError: the method is not known, or a parameter is missing or not a usable number.
    """
    if calibration.method not in METHODS:
        raise InputError(f"unknown calibration method '{calibration.method}'; this version knows {', '.join(METHODS)}")
    return METHODS[calibration.method](p_raw, calibration.parameters)


def _none(p_raw: Array, _parameters: dict[str, Any]) -> Array:
    return p_raw


def _temperature(p_raw: Array, parameters: dict[str, Any]) -> Array:
    temperature = _number(parameters, "temperature")
    if temperature <= 0:
        raise InputError(f"the manifest's temperature {temperature} is not above 0; train anew")
    return sigmoid(logit(p_raw) / temperature)


def _platt(p_raw: Array, parameters: dict[str, Any]) -> Array:
    slope = _number(parameters, "slope")
    if slope < 0:
        raise InputError(f"the manifest's slope {slope} is below 0, which turns the ranking around; train anew")
    return sigmoid(slope * logit(p_raw) + _number(parameters, "bias"))


def _isotonic(p_raw: Array, parameters: dict[str, Any]) -> Array:
    x, y = (_numbers(parameters, name) for name in ("x", "y"))
    if len(x) != len(y) or (np.diff(x) < 0).any() or (np.diff(y) < 0).any() or (y < 0).any() or (y > 1).any():
        raise InputError("the manifest's isotonic calibration is no rising curve; train anew")
    level = np.interp(logit(p_raw), x, y)
    smooth = level + TIE_BREAK * (np.clip(p_raw, 0.0, 1.0) - level)
    return sigmoid(logit(smooth) + _number(parameters, "bias"))


METHODS: dict[str, Callable[[Array, dict[str, Any]], Array]] = {
    "none": _none,
    "temperature": _temperature,
    "platt": _platt,
    "isotonic": _isotonic,
}
"""Method → how its parameters are applied; from the simplest to the most flexible."""


def _number(parameters: dict[str, Any], name: str) -> float:
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"the manifest's calibration has no usable '{name}' ({value!r}); train anew")
    return float(value)


def _numbers(parameters: dict[str, Any], name: str) -> Array:
    values = parameters.get(name)
    if not isinstance(values, list) or not values:
        raise InputError(f"the manifest's calibration has no usable '{name}'; train anew")
    return np.array([_number({name: value}, name) for value in values])
