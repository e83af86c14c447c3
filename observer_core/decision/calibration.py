"""Calibration: from a model's raw probability to one that means what it says.

A temperature only stretches around 0.5 and cannot mend a bias, so new runs use Platt scaling (J. Platt 1999,
"Probabilistic outputs for support vector machines"): p = sigmoid(slope · logit(p_raw) + bias), fitted on the
calibration split alone. Manifests of the seed system carry a temperature: p = sigmoid(logit(clamp(p_raw, 1e-6)) / T).
"""

import math

import numpy as np
from numpy.typing import NDArray

from observer_core.errors import InputError
from observer_core.rundir import Calibration, Manifest

CLAMP = 1e-6
"""Probabilities are kept this far from 0 and 1 before the logit."""


def logit(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(p / (1 − p)) with p clamped to [1e-6, 1 − 1e-6]."""
    p = np.clip(p, CLAMP, 1 - CLAMP)
    return np.log(p / (1 - p))


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + e^−x), without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def fit_platt(
    p_raw: NDArray[np.float64], wrong: NDArray[np.bool_], weight: NDArray[np.float64], *, iterations: int = 100
) -> Calibration:
    """Fit slope and bias by maximum likelihood with Platt's smoothed targets, so that a separable set stays finite.

    Args:
        p_raw: raw probabilities, shape (n,).
        wrong: labels, shape (n,).
        weight: what each row stands for, shape (n,); scaled to mean 1.
        iterations: limit of Newton steps (it converges in about ten).

    Returns:
        `{"method": "platt", "parameters": {"slope", "bias", "n"}}`. A slope below zero (the model ranks backwards on
        these rows) is replaced by 0, which predicts the base rate: calibration never turns a ranking around.

    Raises:
        InputError: no rows, or only one class.
    """
    positives, negatives = float(wrong.sum()), float((~wrong).sum())
    if not positives or not negatives:
        raise InputError(
            f"the calibration split has {int(positives)} wrong and {int(negatives)} correct traces; add traces of both"
        )
    weight = weight / weight.mean()
    target = np.where(wrong, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    x = np.stack([logit(p_raw), np.ones_like(p_raw)], axis=1)

    def solve(columns: NDArray[np.float64]) -> NDArray[np.float64]:
        beta = np.zeros(columns.shape[1])
        ridge = 1e-6 * np.eye(columns.shape[1])
        for _ in range(iterations):
            p = sigmoid(columns @ beta)
            gradient = columns.T @ (weight * (p - target)) + ridge @ beta
            hessian = columns.T @ (columns * (weight * p * (1 - p))[:, None]) + ridge
            step = np.linalg.solve(hessian, gradient)
            # Damped: a full Newton step may overshoot where the curve is flat.
            beta -= step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
            if np.abs(step).max() < 1e-9:
                break
        return beta

    slope, bias = solve(x)
    if slope < 0:
        slope, bias = 0.0, float(solve(x[:, 1:])[0])
    return Calibration(method="platt", parameters={"slope": float(slope), "bias": float(bias), "n": len(p_raw)})


def calibrate(p_raw: NDArray[np.float64], manifest: Manifest) -> NDArray[np.float64]:
    """`p_wrong` from `p_wrong_raw` (shape kept): by the manifest's `calibration`, else its `temperatures`, else raw.

    Raises:
        InputError: the method is not known, or a parameter is missing or not a usable number.
    """
    if manifest.calibration is not None:
        if manifest.calibration.method != "platt":
            raise InputError(f"unknown calibration method '{manifest.calibration.method}'; this version knows platt")
        slope, bias = (_parameter(manifest.calibration, name) for name in ("slope", "bias"))
        return sigmoid(slope * logit(p_raw) + bias)
    temperature = manifest.temperatures.get(manifest.decision_question)
    if temperature is None:
        return p_raw
    if not (math.isfinite(temperature) and temperature > 0):
        raise InputError(f"the manifest's temperature {temperature} is not above 0; train anew")
    return sigmoid(logit(p_raw) / temperature)


def _parameter(calibration: Calibration, name: str) -> float:
    value = calibration.parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"the manifest's calibration has no usable '{name}' ({value!r}); train anew")
    return float(value)
