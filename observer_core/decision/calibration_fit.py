"""Fits calibrations, and chooses between them by how they do on user questions they were not fitted on.

Only the calibration split is looked at. The four methods are compared out of fold (folds by user question, since the
traces of one question are alike) by log loss; the lowest wins, of equals the simpler, and is fitted again on all rows.
The whole comparison travels in the manifest as `calibration.parameters.out_of_fold`.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.calibration import Array, apply_calibration, logit, sigmoid
from observer_core.errors import InputError
from observer_core.metrics import probability
from observer_core.metrics.estimate import Estimate
from observer_core.metrics.predictions import Sample, group_of
from observer_core.rundir import Calibration
from observer_core.traces.trace import Trace

FOLDS = 5
MIN_EFFECTIVE_ISOTONIC = 1000
"""Isotonic regression is not offered to fewer effective rows: it would fit their noise."""
_MIN_SLOPE, _MAX_SLOPE = 1 / 20, 20.0
_RIDGE = 1e-6

Bools = NDArray[np.bool_]
Fit = Callable[[Array, Bools, Array], Calibration]


def fit_calibration(p_raw: Array, traces: Sequence[Trace], wrong: Bools, weight: Array) -> Calibration:
    """The calibration that does best out of fold.

    Args:
        p_raw: raw probabilities, shape (n,).
        traces: whose they are; their user questions make the folds.
        wrong, weight: labels and what each row stands for, shape (n,).

    Raises:
        InputError: no rows, or only one class.
    """
    _both_classes(wrong)
    fold = folds_by_question(traces)
    effective = effective_n(weight)
    compared: dict[str, Any] = {}
    losses: dict[str, float] = {}
    for method, fit in _FITS.items():
        if method == "isotonic" and effective < MIN_EFFECTIVE_ISOTONIC:
            compared[method] = {"not_offered": f"{effective:.0f} effective rows; {MIN_EFFECTIVE_ISOTONIC} are needed"}
            continue
        held_out = _out_of_fold(fit, p_raw, wrong, weight, fold)
        if held_out is None:
            compared[method] = {"not_offered": "too few user questions of each class to hold some out"}
            continue
        metrics = _metrics(sample_of_rows(held_out, traces, wrong, weight))
        compared[method] = {name: estimate.to_json() for name, estimate in metrics.items()}
        losses[method] = round(metrics["log_loss"].value or 0.0, 9)
    chosen = min(losses, key=losses.__getitem__) if losses else "platt"
    fitted = _FITS[chosen](p_raw, wrong, weight)
    fitted.parameters |= {
        "n": len(p_raw),
        "n_effective": round(effective, 1),
        "questions": len({group_of(trace.question) for trace in traces}),
        "out_of_fold": {"folds": FOLDS, "by": "user question", "chosen_by": "log_loss", "methods": compared},
    }
    return fitted


def effective_n(weight: Array) -> float:
    """Kish's effective number of rows, (Σw)² / Σw²."""
    return float(weight.sum() ** 2 / (weight**2).sum())


def folds_by_question(traces: Sequence[Trace]) -> NDArray[np.int64]:
    """The fold 0 … 4 of each trace, shape (n,); traces of one user question share theirs.

    Questions are dealt out in the order of a digest of their own, so that a fold depends on nothing else.
    """
    groups, group = np.unique([group_of(trace.question) for trace in traces], return_inverse=True)
    order = np.argsort([hashlib.sha256(f"fold {digest}".encode()).hexdigest() for digest in groups])
    fold = np.empty(len(groups), dtype=np.int64)
    fold[order] = np.arange(len(groups)) % FOLDS
    return fold[group]


def fit_none(_p_raw: Array, _wrong: Bools, _weight: Array) -> Calibration:
    """The raw probability as it is."""
    return Calibration(method="none")


def fit_temperature(p_raw: Array, wrong: Bools, weight: Array) -> Calibration:
    """One temperature, in [1/20, 20], by maximum likelihood."""
    [slope] = logistic(logit(p_raw)[:, None], wrong.astype(float), weight / weight.mean(), _RIDGE)
    return Calibration(
        method="temperature", parameters={"temperature": 1 / float(np.clip(slope, _MIN_SLOPE, _MAX_SLOPE))}
    )


def fit_platt(p_raw: Array, wrong: Bools, weight: Array) -> Calibration:
    """Slope and bias by maximum likelihood with Platt's smoothed targets, so that a separable set stays finite.

    A slope below zero (the model ranks backwards on these rows) is replaced by 0, which predicts the base rate:
    calibration never turns a ranking around.

    Raises:
        InputError: no rows, or only one class.
    """
    positives, negatives = _both_classes(wrong)
    target = np.where(wrong, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    weight = weight / weight.mean()
    ones = np.ones((len(p_raw), 1))
    slope, bias = logistic(np.column_stack([logit(p_raw), ones]), target, weight, _RIDGE)
    if slope < 0:
        slope, bias = 0.0, logistic(ones, target, weight, _RIDGE)[0]
    return Calibration(method="platt", parameters={"slope": float(slope), "bias": float(bias)})


def fit_isotonic(p_raw: Array, wrong: Bools, weight: Array) -> Calibration:
    """The rising step function closest to the labels (pool adjacent violators), as points to interpolate between.

    A point lies at the mean logit of a step's rows. Its height is kept 1 / (n + 2) away from 0 and 1, n the effective
    number of rows: a step without a wrong answer does not prove that there are none.
    """
    x, place = np.unique(logit(p_raw), return_inverse=True)
    mass, wrong_mass = np.bincount(place, weights=weight), np.bincount(place, weights=weight * wrong)
    steps: list[Array] = []  # weight, weight of wrong rows, weighted logits
    for row in np.column_stack([mass, wrong_mass, mass * x]):
        steps.append(row)
        while len(steps) > 1 and steps[-2][1] * steps[-1][0] >= steps[-1][1] * steps[-2][0]:
            last = steps.pop()
            steps[-1] = steps[-1] + last
    total, labels, logits = np.array(steps).T
    margin = 1 / (effective_n(weight) + 2)
    height = np.clip(labels / total, margin, 1 - margin)
    return Calibration(
        method="isotonic", parameters={"x": (logits / total).tolist(), "y": height.tolist(), "bias": 0.0}
    )


_FITS: dict[str, Fit] = {
    "none": fit_none,
    "temperature": fit_temperature,
    "platt": fit_platt,
    "isotonic": fit_isotonic,
}


def _both_classes(wrong: Bools) -> tuple[float, float]:
    positives, negatives = float(wrong.sum()), float((~wrong).sum())
    if not positives or not negatives:
        raise InputError(
            f"the calibration split has {int(positives)} wrong and {int(negatives)} correct traces; add traces of both"
        )
    return positives, negatives


def _out_of_fold(fit: Fit, p_raw: Array, wrong: Bools, weight: Array, fold: NDArray[np.int64]) -> Array | None:
    """Each row's probability by a calibration fitted without its fold; `None` when a fold leaves one class only."""
    out = np.empty_like(p_raw)
    for held_out in (fold == k for k in np.unique(fold)):
        rest = wrong[~held_out]
        if not rest.any() or rest.all():
            return None
        out[held_out] = apply_calibration(p_raw[held_out], fit(p_raw[~held_out], rest, weight[~held_out]))
    return out


def sample_of_rows(p: Array, traces: Sequence[Trace], wrong: Bools, weight: Array) -> Sample:
    """Probabilities of labeled traces in the form the metrics are computed from."""
    groups, group = np.unique([group_of(trace.question) for trace in traces], return_inverse=True)
    no = np.zeros(len(p), dtype=bool)
    keys = tuple(map(str, range(len(p))))
    return Sample(keys, wrong, no, no, p, weight, group, len(groups), agent=np.zeros(len(p), dtype=np.int64))


def _metrics(sample: Sample) -> dict[str, Estimate]:
    intercept, slope = probability.calibration_fit(sample)
    return {
        "log_loss": probability.log_loss(sample),
        "brier": probability.brier(sample),
        "ece_debiased": probability.ece_debiased(sample),
        "calibration_intercept": intercept,
        "calibration_slope": slope,
    }


def logistic(columns: Array, target: Array, weight: Array, penalty: Array | float, *, iterations: int = 100) -> Array:
    """Coefficients of a weighted logistic regression by Newton's method (it converges in about ten steps).

    Args:
        columns: inputs, shape (n, inputs); a column of ones is the intercept.
        target: 0 to 1, shape (n,).
        penalty: of each coefficient's square, half of it added to the sum of losses; above 0.
    """
    beta = np.zeros(columns.shape[1])
    ridge = np.eye(columns.shape[1]) * penalty
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
