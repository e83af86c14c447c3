"""How good the probabilities themselves are: Brier score, log loss, calibration. Everything weighted and clustered."""

import math
from dataclasses import dataclass

import numpy as np

from observer_core.metrics.estimate import LEVEL, Estimate, clustered_se, no_number, wald, wilson, z_of
from observer_core.metrics.predictions import Sample

CLAMP = 1e-6
"""Probabilities are kept this far from 0 and 1 where a logarithm is taken; calibration clamps by the same."""
BINS = 10
ROWS_PER_BIN = 20


def squared_error(sample: Sample) -> np.ndarray:
    return (sample.p - sample.wrong) ** 2


def log_error(sample: Sample) -> np.ndarray:
    p = np.clip(sample.p, CLAMP, 1 - CLAMP)
    return -np.log(np.where(sample.wrong, p, 1 - p))


def weighted_mean(values: np.ndarray, sample: Sample, *, level: float = LEVEL) -> Estimate:
    """The weighted mean of a value per row, its interval clustered by user question."""
    if sample.n == 0:
        return no_number("there are no such traces", 0)
    share = sample.weight / sample.weight.sum()
    value = float((share * values).sum())
    return wald(value, clustered_se(share * (values - value), sample.group, sample.groups), sample.n, level=level)


def brier(sample: Sample) -> Estimate:
    """Mean of (p - wrong)²."""
    return weighted_mean(squared_error(sample), sample)


def log_loss(sample: Sample) -> Estimate:
    """Mean negative log likelihood in nats."""
    return weighted_mean(log_error(sample), sample)


def paired_mean(a: np.ndarray, b: np.ndarray, sample: Sample, *, level: float = LEVEL) -> Estimate:
    """The mean of `a - b` over the same traces, clustered by user question."""
    return weighted_mean(a - b, sample, level=level)


def prevalence(sample: Sample) -> Estimate:
    """Share of wrong traces; Wilson's interval at the effective number of independent traces."""
    mean = weighted_mean(sample.wrong.astype(float), sample)
    if mean.value is None or mean.lo is None or mean.hi is None:
        return mean
    if mean.value in (0.0, 1.0):
        effective = float(sample.groups)
    else:
        se = (mean.hi - mean.lo) / (2 * z_of(LEVEL))
        effective = mean.value * (1 - mean.value) / se**2
    return Estimate(mean.value, *wilson(mean.value, effective), sample.n)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Equal-mass bins of the score: mean score, observed share wrong, the standard error of their difference, mass."""

    score: np.ndarray
    observed: np.ndarray
    se: np.ndarray
    mass: np.ndarray


def reliability(sample: Sample) -> Reliability:
    """Bins of equal weight, rows with one score in one bin; fewer bins for fewer rows (at least 20 rows a bin)."""
    bins = int(np.clip(sample.n // ROWS_PER_BIN, 2, BINS))
    values, place = np.unique(sample.p, return_inverse=True)
    mass = np.bincount(place, weights=sample.weight, minlength=len(values))
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    bin_of = np.minimum((middle * bins).astype(int), bins - 1)[place]
    rows = []
    for b in np.unique(bin_of):
        own = sample.take(bin_of == b)
        share = own.weight / own.weight.sum()
        gap = share * (own.wrong - own.p)
        se = clustered_se(gap - share * gap.sum(), own.group, own.groups)
        rows.append(((share * own.p).sum(), (share * own.wrong).sum(), np.nan if se is None else se, own.weight.sum()))
    score, observed, se, total = np.array(rows).T
    return Reliability(score, observed, se, total / total.sum())


def ece_debiased(sample: Sample) -> Estimate:
    """Root mean squared gap between score and observed share over equal-mass bins, without the bias of small bins.

    A plain ECE of perfectly calibrated scores is far from 0 (0.057 at 418 rows); here each bin's sampling variance is
    taken off its squared gap (Kumar, Liang, Ma: Verified Uncertainty Calibration, NeurIPS 2019), with variances
    clustered by user question. The interval treats the gaps as normal, a bin's variance as known, and bins as
    independent. Below 0 is 0.
    """
    if sample.problem:
        return no_number(sample.problem, sample.n)
    if sample.n < 2 * ROWS_PER_BIN:
        return no_number(f"fewer than {2 * ROWS_PER_BIN} traces", sample.n)
    bins = reliability(sample)
    if np.isnan(bins.se).any():
        return no_number("a bin holds one user question only", sample.n)
    gap2, variance = (bins.score - bins.observed) ** 2, bins.se**2
    square = float((bins.mass * (gap2 - variance)).sum())
    spread = bins.mass**2 * (4 * np.maximum(0, gap2 - variance) * variance + 2 * variance**2)
    half = z_of(LEVEL) * math.sqrt(float(spread.sum()))
    value, lo, hi = (math.sqrt(max(0.0, x)) for x in (square, square - half, square + half))
    return Estimate(value, lo, hi, sample.n)


def calibration_fit(sample: Sample) -> tuple[Estimate, Estimate]:
    """Calibration intercept and slope (Cox 1958; Van Calster et al., J. Clin. Epidemiol. 74, 2016); ideal: 0 and 1.

    The slope is that of a logistic regression of *wrong* on the logit of the score; the intercept is fitted with the
    slope held at 1 (too high or too low on the whole). Intervals are clustered by user question.
    """
    if sample.problem:
        return no_number(sample.problem, sample.n), no_number(sample.problem, sample.n)
    logit = np.log(np.clip(sample.p, CLAMP, 1 - CLAMP) / (1 - np.clip(sample.p, CLAMP, 1 - CLAMP)))
    ones = np.ones((sample.n, 1))
    intercept = _logistic(ones, logit, sample)
    if np.ptp(logit) == 0:
        slope = no_number("all scores are equal", sample.n)
    elif sample.p[sample.wrong].min() >= sample.p[~sample.wrong].max():
        slope = no_number("the scores separate wrong from correct completely", sample.n)
    elif sample.p[sample.wrong].max() <= sample.p[~sample.wrong].min():
        slope = no_number("the scores separate wrong from correct completely, the wrong way round", sample.n)
    else:
        slope = _logistic(np.column_stack([logit, ones]), np.zeros(sample.n), sample)
    return intercept, slope


def _logistic(design: np.ndarray, offset: np.ndarray, sample: Sample) -> Estimate:
    """The first coefficient of a weighted logistic regression with its clustered sandwich interval (Newton steps)."""
    w = sample.weight / sample.weight.mean()
    beta = np.zeros(design.shape[1])

    def loss(b: np.ndarray) -> float:
        eta = design @ b + offset
        return float((w * (np.logaddexp(0, eta) - sample.wrong * eta)).sum())

    for _ in range(100):
        mean = 1 / (1 + np.exp(-(design @ beta + offset)))
        score = design * (w * (sample.wrong - mean))[:, None]
        information = (design * (w * mean * (1 - mean))[:, None]).T @ design
        step = np.linalg.solve(information + 1e-12 * np.eye(len(beta)), score.sum(axis=0))
        size, before = 1.0, loss(beta)
        while loss(beta + size * step) > before + 1e-12 and size > 1e-6:
            size /= 2
        beta = beta + size * step
        if np.abs(size * step).max() < 1e-9:
            break
    else:
        return no_number("the logistic fit does not converge", sample.n)
    inverse = np.linalg.inv(information + 1e-12 * np.eye(len(beta)))
    influence = score @ inverse
    return wald(float(beta[0]), clustered_se(influence[:, 0], sample.group, sample.groups), sample.n)
