"""The share of wrong answers in live traffic, estimated from the few traces people looked at.

Traces fall into two strata with known counts: those kept for certain (their score was high), and all others, of which a
random share was kept. Averaging over what was kept would over-count the first by far; weighting single traces by
1 / probability is unbiased but its intervals are too narrow for rare errors. So each stratum gets its own proportion
and its own Wilson interval, and the strata are added by their shares of the traffic (post-stratification; intervals
combined by Zou & Donner 2008, "Construction of confidence limits about effect measures", "MOVER").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from observer_core.metrics.estimate import Estimate, no_number, wilson

CERTAIN = 1.0


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A reviewed trace: how likely it was kept and then drawn for review, and what people said."""

    keep_probability: float
    review_probability: float
    wrong: bool


@dataclass(frozen=True, slots=True)
class Stratum:
    """How many traces of the traffic a stratum stands for, how many were reviewed, and its share of wrong ones."""

    name: str
    population: int
    reviewed: int
    share_wrong: float | None
    lo: float
    hi: float


def stratum(name: str, population: int, reviewed: Sequence[Reviewed]) -> Stratum:
    """The stratum's share of wrong answers; unequal probabilities inside it count by weight and effective size."""
    if not reviewed:
        return Stratum(name, population, 0, None, 0.0, 1.0)
    weights = [1.0 / (r.keep_probability * r.review_probability) for r in reviewed]
    share = sum(w for w, r in zip(weights, reviewed, strict=True) if r.wrong) / sum(weights)
    effective = sum(weights) ** 2 / sum(w * w for w in weights)
    lo, hi = wilson(share, effective)
    return Stratum(name, population, len(reviewed), share, lo, hi)


def true_error_rate(strata: Sequence[Stratum]) -> Estimate:
    """The share of wrong answers over all strata with its 95 % interval, or why there is none.

    A populated stratum nobody reviewed leaves the rate unknown: nothing says what is in it.
    """
    filled = [s for s in strata if s.population]
    total = sum(s.population for s in filled)
    n = sum(s.reviewed for s in filled)
    if not total:
        return no_number("no decisions yet", 0)
    unseen = [s.name for s in filled if s.share_wrong is None]
    if unseen:
        return no_number(f"nobody reviewed a trace that was {unseen[0]}", n)
    value = lower = upper = 0.0
    for s in filled:
        share = s.population / total
        proportion = s.share_wrong or 0.0
        value += share * proportion
        lower += (share * (proportion - s.lo)) ** 2
        upper += (share * (s.hi - proportion)) ** 2
    return Estimate(value, max(0.0, value - math.sqrt(lower)), min(1.0, value + math.sqrt(upper)), n)
