"""Two scorers on the same traces: paired differences, clustered by user question."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from observer_core.metrics import ranking
from observer_core.metrics.estimate import Estimate, bootstrap, no_number, percentile
from observer_core.metrics.evaluate import budget_name
from observer_core.metrics.predictions import Sample, Slice, pair, sample_of
from observer_core.metrics.probability import log_error, paired_mean, squared_error

RECALL_BUDGETS = (0.05, 0.20)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """`a` minus `b` per metric, on the `n` traces of `questions` user questions that both scored.

    For AUROC and recall more is better, for `brier` and `log_loss` less.
    """

    a: str
    b: str
    n: int
    questions: int
    differences: dict[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "n": self.n,
            "questions": self.questions,
            "differences": {name: value.to_json() for name, value in self.differences.items()},
        }


def compare(predictions: pa.Table, a: str, b: str, *, split: str | None = None) -> PairedDifference:
    """Paired differences with 95 % intervals over the labeled traces (of `split`, if given) that both scored.

    AUROC by Obuchowski's covariance, Brier and log loss by clustered means, recall at 5 and 20 % by a bootstrap over
    user questions.

    Raises:
        InputError: a scorer is not in the table.
    """
    left, right = pair(sample_of(predictions, a, split=split), sample_of(predictions, b, split=split))
    differences = {
        "auroc": ranking.paired_auroc(left, right),
        **_recall(left, right),
        "brier": paired_mean(squared_error(left), squared_error(right), left),
        "log_loss": paired_mean(log_error(left), log_error(right), left),
    }
    return PairedDifference(a, b, left.n, left.groups, differences)


def compare_slice(predictions: pa.Table, a: str, b: str, part: Slice, *, partial: bool) -> PairedDifference:
    """`compare` on a slice (see `Sample.slice`), without recall: differences of AUROC and Brier score."""
    left, right = pair(sample_of(predictions, a), sample_of(predictions, b))
    left, right = left.slice(part, partial=partial), right.slice(part, partial=partial)
    differences = {
        "auroc": ranking.paired_auroc(left, right),
        "brier": paired_mean(squared_error(left), squared_error(right), left),
    }
    return PairedDifference(a, b, left.n, left.groups, differences)


def _recall(a: Sample, b: Sample) -> dict[str, Estimate]:
    budgets = np.array(RECALL_BUDGETS)
    names = [f"recall_at_{budget_name(budget)}" for budget in RECALL_BUDGETS]
    if a.problem:
        return {name: no_number(a.problem, a.n) for name in names}
    left, right = ranking.Gains(a.p, a.wrong), ranking.Gains(b.p, b.wrong)

    def difference(weight: np.ndarray) -> np.ndarray:
        return left.recall(weight, budgets) - right.recall(weight, budgets)

    values = difference(a.weight)
    replicates = bootstrap(difference, a.group, a.groups, a.weight)
    return {name: percentile(float(values[i]), replicates[:, i], a.n) for i, name in enumerate(names)}
