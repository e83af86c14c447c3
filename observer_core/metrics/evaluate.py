"""All metrics of one scorer: slices `all`, `natural`, `seeded`, each metric also without `partial` labels."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from observer_core.metrics import probability, ranking
from observer_core.metrics.estimate import Estimate, bootstrap, no_number, percentile
from observer_core.metrics.predictions import SLICES, Sample, sample_of

NO_PARTIAL = "_no_partial"
Metrics = dict[str, dict[str, Estimate]]


def evaluate(predictions: pa.Table, scorer: str) -> Metrics:
    """Slice → metric → estimate, for the labeled rows of `scorer`.

    Metrics: `prevalence`, `auroc`, `auroc_within_agent`, `auprc`; at budgets of 1, 5, 10 and 20 % of the traces
    `recall_at_5pct`, `lift_at_5pct` (over random) and `normalised_recall_at_5pct` ((scorer - random) / (oracle -
    random)); `brier`, `log_loss`, `ece_debiased`, `calibration_intercept`, `calibration_slope`; each again with the
    suffix `_no_partial`, computed without the rows labeled `partial`. One set of names for metrics.json and MLflow.
    """
    sample = sample_of(predictions, scorer)
    return {
        name: metrics_of(sample.slice(name))
        | {f"{key}{NO_PARTIAL}": value for key, value in metrics_of(sample.slice(name, partial=False)).items()}
        for name in SLICES
    }


def metrics_json(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """As `metrics.json` holds it: slice → metric → `value`, `lo`, `hi`, `n` (and `reason`)."""
    return {name: {key: value.to_json() for key, value in part.items()} for name, part in metrics.items()}


def budget_name(budget: float) -> str:
    """How metric names call a budget: `5pct`."""
    return f"{budget * 100:g}pct"


def metrics_of(sample: Sample) -> dict[str, Estimate]:
    """Every metric of one sample."""
    intercept, slope = probability.calibration_fit(sample)
    return {
        "prevalence": probability.prevalence(sample),
        "auroc": ranking.auroc(sample),
        "auroc_within_agent": ranking.auroc_within_agent(sample),
        **dict(_gains(sample)),
        "brier": probability.brier(sample),
        "log_loss": probability.log_loss(sample),
        "ece_debiased": probability.ece_debiased(sample),
        "calibration_intercept": intercept,
        "calibration_slope": slope,
    }


def _gains(sample: Sample) -> Iterator[tuple[str, Estimate]]:
    """AUPRC and the budget metrics; their intervals are percentiles of a bootstrap over user questions."""
    budgets = np.array(ranking.BUDGETS)
    names = ["auprc"] + [
        f"{kind}_at_{budget_name(b)}" for kind in ("recall", "lift", "normalised_recall") for b in budgets
    ]
    if sample.problem:
        yield from ((name, no_number(sample.problem, sample.n)) for name in names)
        return
    gains = ranking.Gains(sample.p, sample.wrong)

    def statistics(weight: np.ndarray) -> np.ndarray:
        wrong_share = float((weight * sample.wrong).sum() / weight.sum())
        if wrong_share in (0.0, 1.0):
            return np.full(len(names), np.nan)
        recall = gains.recall(weight, budgets)
        oracle = ranking.oracle_recall(wrong_share, budgets)
        normalised = (recall - budgets) / (oracle - budgets)
        return np.concatenate([[gains.average_precision(weight)], recall, recall / budgets, normalised])

    values = statistics(sample.weight)
    replicates = bootstrap(statistics, sample.group, sample.groups, sample.weight)
    for i, name in enumerate(names):
        yield name, percentile(float(values[i]), replicates[:, i], sample.n)
