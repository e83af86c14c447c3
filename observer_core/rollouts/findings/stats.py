"""The tests behind the findings.

A count against a tolerated rate is tested by the binomial tail, a count in one place against all other places by
Fisher's exact (hypergeometric) tail; both as an upper bound, the first term of the tail times its geometric
remainder. Trends and correlations are Spearman's with the normal approximation. A finding needs p below `alpha /
tests` (Bonferroni over every test that is made on the log, windows and tasks included) *and* an effect of practical
size, because completions of one task are not independent.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Window:
    """Steps `first`..`last` (indexes, inclusive) and the log of the bound on the p-value, windows tried included."""

    first: int
    last: int
    log_p: float


_SMALL = np.array([math.lgamma(n + 1) for n in range(256)])


def _log_factorial(n: np.ndarray) -> np.ndarray:
    """log n!, by table below 256 and Stirling's series (error below 1e-12) above."""
    large = np.maximum(n, 255.0)
    series = large * np.log(large) - large + 0.5 * np.log(2 * np.pi * large) + 1 / (12 * large) - 1 / (360 * large**3)
    return np.where(n < 256, _SMALL[np.clip(n, 0, 255).astype(int)], series)


def _log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    return _log_factorial(n) - _log_factorial(k) - _log_factorial(n - k)


def log_binomial_tail(hits: np.ndarray | float, trials: np.ndarray | float, rate: float) -> np.ndarray:
    """log of an upper bound on P(X ≥ hits) for Binomial(trials, rate); 0 where hits are not above the rate."""
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    first = _log_choose(trials, hits) + hits * math.log(rate) + (trials - hits) * math.log1p(-rate)
    ratio = (trials - hits) / (hits + 1) * (rate / (1 - rate))
    return _bounded(first, ratio, (trials > 0) & (hits > rate * trials))


def log_fisher_tail(hits: np.ndarray, trials: np.ndarray, all_hits: float, all_trials: float) -> np.ndarray:
    """log of an upper bound on the chance that `trials` of all trials hold as many of all hits, or more; 0 where they
    hold no more
    than their share.
    """
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    other_hits, other_trials = all_hits - hits, all_trials - trials
    whole = _log_choose(np.asarray(all_trials, float), np.asarray(all_hits, float))
    first = _log_choose(trials, hits) + _log_choose(other_trials, other_hits) - whole
    ratio = (trials - hits) * other_hits / ((hits + 1) * (other_trials - other_hits + 1))
    return _bounded(first, ratio, hits * all_trials > all_hits * trials)


def _bounded(first: np.ndarray, ratio: np.ndarray, above: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.minimum(first - np.log1p(-np.minimum(ratio, 1 - 1e-9)), 0.0)
    return np.where(above & (ratio < 1), bound, 0.0)


def window_lengths(steps: int, shortest: int = 3) -> list[int]:
    """Lengths tried by the scans: from `shortest`, each about a quarter longer, up to half of the log."""
    lengths, length = [], float(shortest)
    while length <= max(shortest, steps // 2):
        lengths.append(round(length))
        length = max(length + 1, length * 1.25)
    return lengths


def scan(hits: np.ndarray, trials: np.ndarray, rate: float | None = None, *, shortest: int = 3) -> Window | None:
    """The window of steps in which hits are least by chance above `rate`, or (None) above the steps outside:
    Kulldorff's scan.
    """
    steps = len(hits)
    sums, totals = np.append(0, np.cumsum(hits)), np.append(0, np.cumsum(trials))
    best: Window | None = None
    tried = 0
    for length in window_lengths(steps, shortest):
        if length > steps:
            break
        inside, among = sums[length:] - sums[:-length], totals[length:] - totals[:-length]
        if rate is None:
            log_p = log_fisher_tail(inside, among, sums[-1], totals[-1])
        else:
            log_p = log_binomial_tail(inside, among, rate)
        tried += len(log_p)
        at = int(log_p.argmin())
        if best is None or log_p[at] < best.log_p:
            best = Window(at, at + length - 1, float(log_p[at]))
    return best and Window(best.first, best.last, best.log_p + math.log(max(tried, 1)))


def sharpen(hits: np.ndarray, trials: np.ndarray, window: Window, *, rounds: int = 3) -> tuple[int, int]:
    """The most likely edges of a window of raised rate: the run of steps with the largest likelihood ratio of the
    rate inside
    against the rate outside; then single steps beside it that the outside does not explain (p < 0.01).
    """
    first, last = window.first, window.last
    outside = 0.0
    for _ in range(rounds):
        inside_trials = trials[first : last + 1].sum()
        inside = (hits[first : last + 1].sum() + 0.5) / (inside_trials + 1)
        rest_trials = trials.sum() - inside_trials
        outside = (hits.sum() - hits[first : last + 1].sum() + 0.5) / (rest_trials + 1)
        if inside <= outside:
            break
        gain = hits * math.log(inside / outside) + (trials - hits) * math.log((1 - inside) / (1 - outside))
        first, last = _largest_run(gain)
    while first > 0 and hits[first - 1] and _beyond(hits[first - 1], trials[first - 1], outside):
        first -= 1
    while last + 1 < len(hits) and hits[last + 1] and _beyond(hits[last + 1], trials[last + 1], outside):
        last += 1
    return first, last


def _beyond(hits: float, trials: float, rate: float) -> bool:
    """Whether P(X ≥ hits) < 0.01, by the exact tail (few trials)."""
    tail = sum(math.comb(int(trials), k) * rate**k * (1 - rate) ** (int(trials) - k) for k in range(int(hits)))
    return 1 - tail < 0.01


def _largest_run(gain: np.ndarray) -> tuple[int, int]:
    """First and last index of the run with the largest sum."""
    sums = np.append(0.0, np.cumsum(gain))
    lowest = np.minimum.accumulate(sums)
    last = int((sums[1:] - lowest[:-1]).argmax())
    first = int(sums[: last + 1].argmin())
    return first, last


def trend(values: np.ndarray) -> tuple[float, float]:
    """Spearman's rank correlation of a series with time, and the log of its two-sided p (normal approximation); NaNs
    left out.
    """
    series = values[~np.isnan(values)]
    return correlation(np.arange(len(series)), series)


def correlation(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Spearman's rank correlation and the log of its two-sided p; (0, 0) below a dozen values or without variation."""
    if len(a) < 12 or (a == a[0]).all() or (b == b[0]).all():
        return 0.0, 0.0
    x, y = _ranks(a), _ranks(b)
    rho = float(np.corrcoef(x, y)[0, 1])
    z = abs(rho) * math.sqrt(len(a) - 1)
    return rho, log_normal_tail(z) + math.log(2)


def log_normal_tail(z: float) -> float:
    """log P(Z ≥ z)."""
    if z < 30:
        return math.log(math.erfc(z / math.sqrt(2)) / 2)
    return -z * z / 2 - math.log(z * math.sqrt(2 * math.pi))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    return middle[inverse]


def running_median(values: np.ndarray, width: int) -> np.ndarray:
    """Median over `width` neighbours, the window cut at the ends; computed at up to 200 places and interpolated."""
    size = len(values)
    half = max(1, width // 2)
    places = np.unique(np.linspace(0, size - 1, min(size, 200)).astype(int))
    medians = [np.nanmedian(values[max(0, p - half) : p + half + 1]) for p in places]
    return np.interp(np.arange(size), places, medians)
