"""The true share of wrong answers among all traces received, estimated from the few that were kept and reviewed.

What was kept is chosen by its score, so a plain average over it is far off. Traces kept for certain and traces kept at
random are two strata whose sizes are known, because every trace received has a recorded decision. The rate of each
is estimated inside and the two are put together in proportion to their sizes. A bootstrap of the weighted mean covers
far too rarely when the random stratum shows no error yet; intervals for proportions do not have that defect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from observer_core.metrics.estimate import LEVEL, Estimate, jeffreys, no_number, wilson

_BOLDNESS = 0.75
"""How far the lower limit goes from Jeffreys' to Wilson's."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """`received` traces, of which `reviewed` have a verdict; `effective` is what those are worth as equal ones."""

    name: str
    received: int
    reviewed: int
    effective: float
    rate: float | None


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """The estimate over all traces in scope, its strata, and how many traces had no chance of being kept."""

    estimate: Estimate
    strata: list[Stratum]
    out_of_scope: int

    def to_json(self) -> dict[str, Any]:
        strata = [
            {"name": s.name, "received": s.received, "reviewed": s.reviewed, "effective": s.effective, "rate": s.rate}
            for s in self.strata
        ]
        return self.estimate.to_json() | {"strata": strata, "out_of_scope": self.out_of_scope}


def true_error_rate(
    keep_probability: Sequence[float] | np.ndarray,
    wrong: Sequence[bool | None] | np.ndarray,
    review_probability: Sequence[float | None] | np.ndarray | None = None,
    *,
    level: float = LEVEL,
) -> ErrorRate:
    """Estimate the error rate of everything received.

    One entry per trace received, kept or not.

    Args:
        keep_probability: as recorded with the decision; traces with 0 (a `drop` rule) are out of scope.
        wrong: the verdict, `None` (in an array NaN) where nobody looked.
        review_probability: with which a kept trace was drawn for review; 1 where `None`.

    Within a stratum the rate is the mean weighted by 1 / (keep × review probability), its interval that of a proportion
    in the effective number of verdicts (`_effective`, `_interval`). Intervals of strata are combined by Newcombe's
    square-and-add for a weighted sum of proportions (Zou & Donner, Stat. Med. 27, 2008).
    """
    keep = np.asarray(keep_probability, dtype=float)
    # As floats a missing verdict or probability is NaN: a hundred thousand traces then cost milliseconds.
    verdicts = np.asarray(wrong, dtype=float)
    seen = ~np.isnan(verdicts)
    is_wrong = np.where(seen, verdicts, 0.0)
    given = np.full(len(keep), np.nan) if review_probability is None else np.asarray(review_probability, dtype=float)
    review = np.where(np.isnan(given), 1.0, given)
    scope = keep > 0
    total, reviewed = int(scope.sum()), int((scope & seen).sum())
    out_of_scope = len(keep) - total
    strata: list[Stratum] = []
    value = below = above = 0.0
    for name, rows in (("kept for certain", keep >= 1), ("kept at random", scope & (keep < 1))):
        if not rows.any():
            continue
        own = rows & seen
        weight = 1 / (keep[own] * review[own])
        rate = float((weight * is_wrong[own]).sum() / weight.sum()) if own.any() else None
        effective = 0.0 if rate is None else _effective(weight, is_wrong[own], rate)
        strata.append(Stratum(name, int(rows.sum()), int(own.sum()), effective, rate))
        if rate is not None:
            share = rows.sum() / total
            lo, hi = _interval(rate, effective, level)
            value += share * rate
            below += (share * (rate - lo)) ** 2
            above += (share * (hi - rate)) ** 2
    unseen = next((stratum.name for stratum in strata if stratum.rate is None), None)
    if not strata:
        estimate = no_number("no traces were received", 0)
    elif unseen is not None:
        estimate = no_number(f"no trace {unseen} has been reviewed", reviewed)
    else:
        estimate = Estimate(
            float(value), float(max(0.0, value - below**0.5)), float(min(1.0, value + above**0.5)), reviewed
        )
    return ErrorRate(estimate, strata, out_of_scope)


def _effective(weight: np.ndarray, is_wrong: np.ndarray, rate: float) -> float:
    """How many equally weighted verdicts would be as uncertain as these.

    The linearised variance of the weighted mean (Särndal, Swensson & Wretman 1992, §5.7) is that of a proportion in
    Σw / ((1 - rate) · a₁ + rate · a₀) verdicts, a₁ and a₀ being Σw² / Σw over the wrong and over the right ones.
    Reviewers who prefer high scores give wrong answers the smaller weights, so a₁ matters, and few are wrong: each kind
    gets one verdict of average weight added. With none at all that makes Kish's number (Σw)² / Σw².
    """
    mean, square = float(weight.mean()), float((weight**2).mean())

    def heaviness(rows: np.ndarray) -> float:
        own = weight[rows]
        return (float((own**2).sum()) + square) / (float(own.sum()) + mean)

    wrong = is_wrong > 0
    return float(weight.sum()) / ((1 - rate) * heaviness(wrong) + rate * heaviness(~wrong))


def _interval(rate: float, effective: float, level: float) -> tuple[float, float]:
    """Jeffreys' upper limit, and a lower one between Jeffreys' and Wilson's.

    Where few errors are to be expected no sample can have too few of them: the upper limit never fails, and equal tails
    cover 97.5 %, not 95 %. Wilson's lower limit fails more often than 2.5 % there (Cai, J. Stat. Plan. Inference 131,
    2005), too often with a single error to be expected in five samples; between the two, the failures of both sides
    stay near 5 % together. The place between them is fitted to simulations: `tests/test_policy_statistics.py`.
    """
    careful, high = jeffreys(rate, effective, level=level)
    bold, _ = wilson(rate, effective, level=level)
    return careful + _BOLDNESS * (bold - careful), high
