"""A number with its interval, or the reason why there is none."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

LEVEL = 0.95
BOOTSTRAP_REPETITIONS = 1000
_MIN_USABLE = 0.9
_STEPS, _TERMS = 100, 500
_CLOSE = 1e-12


@dataclass(frozen=True, slots=True)
class Estimate:
    """`value` with the interval `lo` to `hi` (95 % unless said otherwise) from `n` traces.

    Where a number cannot be given, `value` is `None` and `reason` says why; where only the interval cannot, `lo` and
    `hi` are `None`. Never NaN.
    """

    value: float | None
    lo: float | None
    hi: float | None
    n: int
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"value": self.value, "lo": self.lo, "hi": self.hi, "n": self.n}
        return out | {"reason": self.reason} if self.reason else out

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Estimate":
        """What `to_json` made."""
        return cls(body["value"], body["lo"], body["hi"], body["n"], body.get("reason"))

    def __str__(self) -> str:
        if self.value is None:
            return f"– ({self.reason})"
        if self.lo is None or self.hi is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.lo:.3f} to {self.hi:.3f})"


def no_number(reason: str, n: int) -> Estimate:
    """An estimate that cannot be given."""
    return Estimate(None, None, None, n, reason)


def z_of(level: float) -> float:
    """The normal quantile of a two-sided interval: 1.96 for 0.95."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def wald(
    value: float, se: float | None, n: int, *, level: float = LEVEL, low: float = -math.inf, high: float = math.inf
) -> Estimate:
    """value ± z · se, cut to [low, high]; without an interval when the standard error is unknown."""
    if se is None:
        return Estimate(value, None, None, n, "too few user questions for an interval")
    half = z_of(level) * se
    return Estimate(value, max(low, value - half), min(high, value + half), n)


def wilson(p: float, n: float, *, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval (1927) for a proportion `p` seen in `n` (also fractional, effective) trials."""
    if n <= 0:
        return 0.0, 1.0
    z = z_of(level)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def jeffreys(p: float, n: float, *, level: float = LEVEL) -> tuple[float, float]:
    """The equal-tailed interval from Jeffreys' prior Beta(1/2, 1/2) for a proportion `p` seen in `n` (also fractional)
    trials, 0 and 1 included where they were seen (Brown, Cai & DasGupta, Statist. Sci. 16, 2001, §4.1.2)."""
    if n <= 0:
        return 0.0, 1.0
    tail, wrong, right = (1 - level) / 2, p * n + 0.5, (1 - p) * n + 0.5
    lo = 0.0 if p <= 0 else beta_quantile(tail, wrong, right)
    hi = 1.0 if p >= 1 else beta_quantile(1 - tail, wrong, right)
    return lo, hi


def beta_quantile(q: float, a: float, b: float) -> float:
    """Where the distribution function of Beta(a, b) is `q`, by Newton's method, and bisection where that would leave
    the bracket."""
    log_front = _log_beta_front(a, b)
    lo, hi, x = 0.0, 1.0, a / (a + b)
    for _ in range(_STEPS):
        excess = _beta_below(x, a, b) - q
        lo, hi = (x, hi) if excess < 0 else (lo, x)
        density = math.exp(log_front + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x))
        before, x = x, x - excess / density if density else lo
        if not lo < x < hi:
            x = (lo + hi) / 2
        if abs(x - before) <= _CLOSE * x:
            break
    return x


def _beta_below(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by Lentz's continued fraction (DLMF 8.17.22)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_below(1 - x, b, a)
    log_front = _log_beta_front(a, b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return math.exp(log_front) * fraction / a


def _log_beta_front(a: float, b: float) -> float:
    """-log B(a, b)."""
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)


def cluster_sums(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """The sum of `values` in each of the groups 0 … groups-1."""
    return np.bincount(group, weights=values, minlength=groups)


def clustered_se(influence: np.ndarray, group: np.ndarray, groups: int) -> float | None:
    """Standard error of an estimate from its rows' influences, rows of one group being dependent (sandwich form).

    `None` with fewer than two groups.
    """
    if groups < 2:
        return None
    sums = cluster_sums(influence, group, groups)
    return math.sqrt(groups / (groups - 1) * float((sums**2).sum()))


def bootstrap(
    statistics: Callable[[np.ndarray], np.ndarray], group: np.ndarray, groups: int, weight: np.ndarray
) -> np.ndarray:
    """Replicates of several statistics under resampling of whole groups (cluster bootstrap, Davison & Hinkley 1997).

    Args:
        statistics: row weights → one value per statistic; NaN where a resample has none (one class).

    Returns:
        Array (repetitions, statistics). The same seed each time, so that reports repeat.
    """
    rng = np.random.default_rng(0)
    return np.array(
        [
            statistics(weight * np.bincount(rng.integers(groups, size=groups), minlength=groups)[group])
            for _ in range(BOOTSTRAP_REPETITIONS)
        ]
    )


def percentile(value: float, replicates: np.ndarray, n: int, *, level: float = LEVEL) -> Estimate:
    """`value` with the percentile interval of its bootstrap replicates.

    Without an interval where all replicates agree (at a bound, such as every trace read being wrong): resampling shows
    no spread there, which is not the same as certainty.
    """
    usable = replicates[np.isfinite(replicates)]
    if len(usable) < _MIN_USABLE * len(replicates):
        return Estimate(value, None, None, n, "too few user questions for an interval")
    lo, hi = np.quantile(usable, [(1 - level) / 2, (1 + level) / 2])
    if hi - lo < 1e-12:
        return Estimate(value, None, None, n, "at its bound in every resample, so its interval is unknown")
    return Estimate(value, float(lo), float(hi), n)
