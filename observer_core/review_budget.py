"""The threshold of a review budget: it follows the score distribution, in epochs.

Prevalence and calibration differ everywhere, so a share of traces is what a team can promise, not a fixed score. Time
is cut into epochs of a tenth of the budget's window. An epoch's threshold is computed when it begins, from earlier
scores only, and then stays: no trace moves the threshold that decides it, and every decision can be repeated from its
record.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from observer_core.policy import Outcome, Policy

EPOCHS_PER_WINDOW = 10
MIN_SCORES = 200
"""With fewer scores in the window older ones are used too: a 3 % quantile of 20 scores is noise."""
MAX_SCORES = 20_000
"""The most scores held; a 3 % share from 20,000 has a standard error of 0.1 points."""
MIN_THIN = 0.05
"""Pressure never takes more than this factor: P stays above 0, so the weights stay finite."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What decides from its start to the next: the arguments of `policy.decide` of the same names."""

    number: int
    threshold: float
    at_threshold: float = 1.0
    thin: float = 1.0


def solve(scores: np.ndarray, bases: np.ndarray, share: float) -> tuple[float, float, float]:
    """Threshold, share kept at it, and thinning, under which the expected kept share of these traces is `share`.

    A trace above the threshold is kept for certain, one below with its base (rules and random share): the score adds
    1 - base. What rules and random share alone would keep counts first; where that exceeds the budget, the score keeps
    nothing and everything that no rule decided is thinned.
    """
    left = share * len(scores) - bases.sum()
    if left <= 0:
        decided = bases >= 1.0
        thin = (share * len(scores) - decided.sum()) / max(bases[~decided].sum(), 1e-12)
        return 1.0, 0.0, float(np.clip(thin, MIN_THIN, 1.0))
    values, place = np.unique(scores, return_inverse=True)
    gain = np.bincount(place, weights=1 - bases)[::-1]
    total = np.cumsum(gain)
    k = min(int(np.searchsorted(total, left)), len(values) - 1)
    at = (left - (total[k] - gain[k])) / gain[k] if gain[k] > 0 else 0.0
    return float(values[::-1][k]), float(np.clip(at, 0.0, 1.0)), 1.0


class BudgetThreshold:
    """Holds the recent scores and the current epoch. A policy with a fixed threshold has one epoch for ever.

    Clock: `now` is Unix time in seconds, so that the epochs of replicas have the same numbers.
    """

    def __init__(self, policy: Policy, *, initial_scores: Sequence[float] = ()) -> None:
        """
        Args:
            policy: its review budget, or its fixed threshold.
            initial_scores: validation scores of the model that serves, for the first epoch; without them scores are
                taken as spread evenly over [0, 1] until real ones replace them.
        """
        self._policy = policy
        self._scores: deque[tuple[float, float, float]] = deque(maxlen=MAX_SCORES)  # when observed, score, base
        self._epoch: Epoch | None = None
        levels = (np.arange(MIN_SCORES) + 0.5) / MIN_SCORES
        if len(initial_scores):  # their quantiles; `np.quantile` imports masked arrays, for which a start has no time
            seeds = np.interp(levels, np.linspace(0, 1, len(initial_scores)), np.sort(initial_scores))
        else:
            seeds = levels
        self._scores.extend((-math.inf, score, policy.random_share) for score in seeds.tolist())

    @classmethod
    def restore(cls, policy: Policy, record: Mapping[str, Any]) -> "BudgetThreshold":
        """Continue from a record of `to_json`: the epoch too if it was the same policy's, else only the scores."""
        budget = cls(policy)
        same = record["policy_version"] == policy.version
        budget._scores.clear()
        budget._scores.extend(
            (-math.inf, score, base if same else policy.random_share) for score, base in record["scores"]
        )
        budget._epoch = Epoch(**record["epoch"]) if same and record["epoch"] else None
        return budget

    def epoch(self, now: float) -> Epoch:
        """The epoch that decides at `now`; computed from the scores observed so far when a new one begins.

        Log `to_json()` whenever the `number` is new, before the first decision under it.
        """
        budget = self._policy.review_budget
        if budget is None:
            return Epoch(0, self._policy.keep_threshold or 0.0)
        number = int(now // (budget.window / EPOCHS_PER_WINDOW))
        if self._epoch is None or number > self._epoch.number:
            recent = [entry for entry in self._scores if entry[0] >= now - budget.window]
            if len(recent) < MIN_SCORES:
                recent = list(self._scores)[-MIN_SCORES:]
            table = np.array(recent)
            self._epoch = Epoch(number, *solve(table[:, 1], table[:, 2], budget.share))
        return self._epoch

    def adopt(self, epoch: Epoch) -> None:
        """Decide under an epoch that another replica computed."""
        self._epoch = epoch

    def observe(self, outcome: Outcome, now: float) -> None:
        """Count a decided trace for later epochs; not those without a score, nor those a `drop` rule took."""
        taken_out = outcome.reason.startswith("rule:") and outcome.would_decide == "drop"
        if outcome.p_wrong is not None and not taken_out:
            self._scores.append((now, outcome.p_wrong, outcome.base))

    def to_json(self) -> dict[str, Any]:
        """The current epoch and a digest of the scores (evenly spaced ones): one record of the append-only log."""
        ordered = sorted((score, base) for _, score, base in self._scores)
        step = len(ordered) / MIN_SCORES
        return {
            "policy_version": self._policy.version,
            "epoch": asdict(self._epoch) if self._epoch else None,
            "scores": [ordered[int((i + 0.5) * step)] for i in range(MIN_SCORES)],
        }
