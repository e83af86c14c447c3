"""What the policy promises, over many traces: shares as stated, replicas that agree, an error rate that is covered."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from observer_core.metrics.error_rate import true_error_rate
from observer_core.policy import PolicyFacts, decide, read_policy, uniform
from observer_core.review_budget import BudgetThreshold, solve

START = 1_200_000_000.0
KEY = b"a key that every replica shares"
TRACES = 100_000
POLICY = {
    "review_budget": {"share": 0.05, "window": "10m"},
    "random_share": 0.02,
    "min_share": {"by": "service.name", "share": 0.005},
    "rules": [
        {"name": "errors", "when": {"span.status": "error"}, "keep": 0.3},
        {"name": "vip", "when": {"attribute": {"user.tier": "gold"}}, "keep": 1},
    ],
}


def replica(scores: np.ndarray, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each trace is kept, and its keep probability."""
    policy = read_policy(POLICY)
    budget = BudgetThreshold(policy)
    kept, stated = np.zeros(len(scores), bool), np.zeros(len(scores))
    for i in range(len(scores)):
        now = START + i / 100
        epoch = budget.epoch(now)
        facts = PolicyFacts(
            statuses={"error"} if kinds[i] < 0.05 else {"ok"},
            attributes={"user.tier": ["gold"]} if kinds[i] > 0.995 else {},
            service="shop",
        )
        outcome = decide(
            policy, u=uniform(KEY, f"{i:032x}"), facts=facts, p_wrong=float(scores[i]), threshold=epoch.threshold,
            at_threshold=epoch.at_threshold, thin=epoch.thin,
        )  # fmt: skip
        budget.observe(outcome, now)
        kept[i], stated[i] = outcome.decision == "keep", outcome.keep_probability
    return kept, stated


def test_a_hundred_thousand_traces_are_kept_as_stated_and_replicas_agree_on_each():
    rng = np.random.default_rng(11)
    scores, kinds = rng.beta(1.5, 8, TRACES), rng.random(TRACES)
    kept, stated = replica(scores, kinds)
    again, restated = replica(scores, kinds)
    assert (kept == again).all()
    assert (stated == restated).all()
    assert kept[stated >= 1].all()
    for low, high in ((0.0, 0.01), (0.01, 0.1), (0.1, 1.0)):
        rows = (stated > low) & (stated <= high) & (stated < 1)
        spread = math.sqrt((stated[rows] * (1 - stated[rows])).sum())
        assert abs(kept[rows].sum() - stated[rows].sum()) <= 4 * spread, (low, high, rows.sum())
    assert stated[10_000:].mean() == pytest.approx(0.05, abs=0.003), "the budget, once the scores are known"


@dataclass(frozen=True)
class Case:
    """One setting of the simulation; `greedy`: reviewers prefer high scores, by recorded review probabilities."""

    n: int
    base_rate: float
    greedy: bool

    def __str__(self) -> str:
        return f"{self.n}-{self.base_rate:g}{'-greedy' if self.greedy else ''}"


CASES = [Case(n, rate, greedy) for n in (1_000, 20_000, 100_000) for rate in (0.03, 0.10) for greedy in (False, True)]


POPULATION = 1_000_000
"""Traces that the repetitions draw from; their own error rate is the truth."""


@dataclass(frozen=True)
class Population:
    """Scores and truth of all traces, and what the policy and the reviewers do with each."""

    wrong: np.ndarray
    keep: np.ndarray
    review: np.ndarray

    @classmethod
    def of(cls, case: Case) -> "Population":
        rng = np.random.default_rng(case.n + int(1000 * case.base_rate) + case.greedy)
        wrong = rng.random(POPULATION) < case.base_rate
        scores = np.where(wrong, rng.beta(3, 4, POPULATION), rng.beta(1.5, 8, POPULATION))
        threshold, at, thin = solve(scores, np.full(POPULATION, 0.02), 0.05)
        chance = np.where(scores > threshold, 1.0, np.where(scores == threshold, at, 0.0))
        review = np.clip(0.3 + 0.7 * scores, 0.0, 1.0) if case.greedy else np.ones(POPULATION)
        return cls(wrong, thin * (0.02 + 0.98 * chance), review)

    def interval(self, n: int, rng: np.random.Generator) -> tuple[float, float] | None:
        """The estimate from `n` traces of which those kept are reviewed; `None` where it says that it cannot tell."""
        drawn = rng.integers(POPULATION, size=n)
        keep, review = self.keep[drawn], self.review[drawn]
        seen = (rng.random(n) < keep) & (rng.random(n) < review)
        verdicts = np.where(seen, self.wrong[drawn], np.nan)
        estimate = true_error_rate(keep, verdicts, review).estimate
        return None if estimate.lo is None or estimate.hi is None else (estimate.lo, estimate.hi)


def coverage(case: Case, repetitions: int, seed: int = 1) -> tuple[float, float]:
    """Share of the intervals that hold the truth, and share of repetitions with an interval."""
    population = Population.of(case)
    truth = population.wrong.mean()
    rng = np.random.default_rng(seed)
    given = [one for _ in range(repetitions) if (one := population.interval(case.n, rng)) is not None]
    return sum(lo <= truth <= hi for lo, hi in given) / len(given), len(given) / repetitions


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_rate_is_covered_as_often_as_it_says(case: Case):
    share, given = coverage(case, 2_000)
    assert 0.93 <= share <= 0.97, f"{share:.4f}"
    assert given > 0.99
