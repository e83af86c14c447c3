"""How well scores rank wrong answers above right ones: AUROC with clustered intervals, AUPRC, recall at a budget.

Ties count as they would under random order of the tied rows; weights are row weights everywhere.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from observer_core.metrics.estimate import LEVEL, Estimate, cluster_sums, no_number, wald, wilson, z_of
from observer_core.metrics.predictions import Sample

BUDGETS = (0.01, 0.05, 0.10, 0.20)


@dataclass(frozen=True, slots=True)
class AurocParts:
    """AUROC with what its variance is made of: each group's influence through its wrong and its correct rows.

    The variance is Obuchowski's for clustered data (Biometrics 53, 1997), which for groups of one row is DeLong's;
    with weights the placements and group sums are weighted.
    """

    value: float
    from_wrong: np.ndarray
    from_correct: np.ndarray
    has_wrong: np.ndarray
    has_correct: np.ndarray

    @property
    def se(self) -> float | None:
        return self.se_of(self.from_wrong, self.from_correct)

    def se_of(self, from_wrong: np.ndarray, from_correct: np.ndarray) -> float | None:
        """Standard error of a statistic with these influences; `None` with fewer than two groups in either class."""
        wrong, correct, either = int(self.has_wrong.sum()), int(self.has_correct.sum()), len(self.has_wrong)
        if min(wrong, correct) < 2:
            return None
        variance = (
            wrong / (wrong - 1) * (from_wrong**2).sum()
            + correct / (correct - 1) * (from_correct**2).sum()
            + 2 * either / (either - 1) * (from_wrong * from_correct).sum()
        )
        return math.sqrt(max(0.0, float(variance)))


def auroc_parts(sample: Sample) -> AurocParts:
    """AUROC (probability that a wrong trace scores above a correct one, ties one half) and its parts.

    The sample must have both classes.
    """
    wrong, w = sample.wrong, sample.weight
    values, place = np.unique(sample.p, return_inverse=True)
    positive = np.bincount(place, weights=w * wrong, minlength=len(values))
    negative = np.bincount(place, weights=w * ~wrong, minlength=len(values))
    below = np.cumsum(negative) - negative / 2
    above = positive.sum() - (np.cumsum(positive) - positive / 2)
    placement = np.where(wrong, below[place] / negative.sum(), above[place] / positive.sum())
    value = float((w * wrong * placement).sum() / positive.sum())
    centred = w * (placement - value)
    return AurocParts(
        value=value,
        from_wrong=cluster_sums(centred * wrong, sample.group, sample.groups) / positive.sum(),
        from_correct=cluster_sums(centred * ~wrong, sample.group, sample.groups) / negative.sum(),
        has_wrong=cluster_sums(1.0 * wrong, sample.group, sample.groups) > 0,
        has_correct=cluster_sums(1.0 * ~wrong, sample.group, sample.groups) > 0,
    )


def _auroc_interval(parts: AurocParts, n: int, level: float) -> Estimate:
    """On the logit scale, which keeps inside (0, 1); at exactly 0 or 1 Wilson's with the groups of the rarer class."""
    value, se = parts.value, parts.se
    if se is None:
        return wald(value, None, n)
    if value in (0.0, 1.0):
        return Estimate(
            value, *wilson(value, min(int(parts.has_wrong.sum()), int(parts.has_correct.sum())), level=level), n
        )
    logit = math.log(value / (1 - value))
    half = z_of(level) * se / (value * (1 - value))
    return Estimate(value, 1 / (1 + math.exp(half - logit)), 1 / (1 + math.exp(-half - logit)), n)


def auroc(sample: Sample, *, level: float = LEVEL) -> Estimate:
    """AUROC with its interval clustered by user question."""
    if sample.problem:
        return no_number(sample.problem, sample.n)
    return _auroc_interval(auroc_parts(sample), sample.n, level)


def auroc_within_agent(sample: Sample, *, level: float = LEVEL) -> Estimate:
    """Mean of the AUROCs within each agent (column `model`): what is left when knowing the agent helps nothing.

    Agents with one class only are left out.
    """
    if sample.problem:
        return no_number(sample.problem, sample.n)
    if sample.agent.max() == 0:
        return no_number("all traces are of one agent", sample.n)
    found: list[AurocParts] = []
    n = 0
    for agent in range(sample.agent.max() + 1):
        own = sample.agent == agent
        if len(set(sample.wrong[own])) == 2:
            n += int(own.sum())
            # weight 0 takes the other agents' rows out and keeps the numbers of the groups
            found.append(auroc_parts(replace(sample, weight=np.where(own, sample.weight, 0.0))))
    if not found:
        return no_number("no agent has both wrong and correct traces", sample.n)
    mean = AurocParts(
        value=float(np.mean([parts.value for parts in found])),
        from_wrong=np.mean([parts.from_wrong for parts in found], axis=0),
        from_correct=np.mean([parts.from_correct for parts in found], axis=0),
        has_wrong=found[0].has_wrong,
        has_correct=found[0].has_correct,
    )
    return _auroc_interval(mean, n, level)


def paired_auroc(a: Sample, b: Sample, *, level: float = LEVEL) -> Estimate:
    """AUROC of `a` minus that of `b` on the same traces (as `pair` gives them), clustered by user question."""
    if a.problem:
        return no_number(a.problem, a.n)
    left, right = auroc_parts(a), auroc_parts(b)
    se = left.se_of(left.from_wrong - right.from_wrong, left.from_correct - right.from_correct)
    return wald(left.value - right.value, se, a.n, level=level, low=-1, high=1)


class Gains:
    """The traces in order of falling score, for statistics that are recomputed under many weightings."""

    def __init__(self, p: np.ndarray, wrong: np.ndarray) -> None:
        self._order = np.argsort(-p, kind="stable")
        ordered = p[self._order]
        self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
        self._wrong = wrong[self._order].astype(float)

    def cumulative(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(weight read, wrong weight found) after reading down to each distinct score, from (0, 0)."""
        w = weight[self._order]
        read = np.append(0.0, np.cumsum(w)[self._ends])
        found = np.append(0.0, np.cumsum(w * self._wrong)[self._ends])
        return read, found

    def recall(self, weight: np.ndarray, budgets: np.ndarray) -> np.ndarray:
        """Share of the wrong weight found when the top `budgets` shares of all weight are read; NaN without wrong."""
        read, found = self.cumulative(weight)
        if found[-1] <= 0:
            return np.full(len(budgets), np.nan)
        return np.interp(budgets * read[-1], read, found) / found[-1]

    def average_precision(self, weight: np.ndarray) -> float:
        """Σ (R_k - R_{k-1}) P_k over the distinct scores; NaN without wrong rows."""
        read, found = self.cumulative(weight)
        if found[-1] <= 0:
            return math.nan
        new = np.diff(found)
        precision = np.divide(found[1:], read[1:], out=np.zeros(len(new)), where=read[1:] > 0)
        return float((new * precision).sum() / found[-1])


def oracle_recall(prevalence: float, budgets: np.ndarray) -> np.ndarray:
    """The recall of a scorer that puts every wrong trace first: min(1, budget / prevalence)."""
    return np.minimum(1.0, budgets / prevalence)
