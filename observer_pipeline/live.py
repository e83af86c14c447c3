"""Live traffic as the warehouse knows it: how often its answers are wrong, and whether its scores have drifted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from observer_core.metrics.error_rate import ErrorRate, true_error_rate
from observer_core.rundir import RunDirectory
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import ANNOTATIONS, REVIEW_QUEUE, TRACES, traces_of
from observer_pipeline.verdicts import merge_annotations

if TYPE_CHECKING:
    from observer_core.decision.recalibrate import BiasRefit

SERVED = pa.schema([(name, pa.string()) for name in ("service", "model", "model_version", "problem", "asked_at")])
ERROR_RATES = pa.schema(
    [
        ("at", pa.string()),
        ("value", pa.float64()),
        ("lo", pa.float64()),
        ("hi", pa.float64()),
        ("n", pa.int64()),
        ("reason", pa.string()),
    ]
)

DRIFTS = pa.schema(
    [
        ("at", pa.string()),
        ("model_version", pa.string()),
        ("live", pa.int64()),
        ("reference", pa.int64()),
        ("distance", pa.float64()),
        ("critical", pa.float64()),
        ("mean_live", pa.float64()),
        ("mean_reference", pa.float64()),
    ]
)
_ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Drift:
    """How far live scores are from those of the validation split.

    `distance` is Kolmogorov and Smirnov's: the largest difference of the two cumulative distributions. Above `critical`
    it would come about by chance less than once in a hundred looks (asymptotic two-sample bound, Smirnov 1948).
    """

    live: int
    reference: int
    distance: float
    critical: float
    mean_live: float
    mean_reference: float

    @property
    def drifted(self) -> bool:
        return self.distance > self.critical


def score_drift(live: Sequence[float], reference: Sequence[float]) -> Drift:
    """Compare scores (`p_wrong`) of live traces with those the same model gave the validation split; both non-empty."""
    a, b = np.sort(live), np.sort(reference)
    at = np.concatenate([a, b])
    distance = np.abs(
        np.searchsorted(a, at, side="right") / len(a) - np.searchsorted(b, at, side="right") / len(b)
    ).max()
    critical = math.sqrt(-math.log(_ALPHA / 2) / 2 * (len(a) + len(b)) / (len(a) * len(b)))
    return Drift(len(a), len(b), float(distance), critical, float(a.mean()), float(b.mean()))


def live_scores(warehouse: Warehouse, model_version: str) -> list[float]:
    """`p_wrong` of every live trace that this model version scored."""
    if not warehouse.parts("live_decisions"):
        return []
    rows = warehouse.query(
        "SELECT p_wrong FROM live_decisions WHERE model_version = $version AND p_wrong IS NOT NULL",
        {"version": model_version},
    )
    return rows["p_wrong"].to_pylist()


def live_error_rate(warehouse: Warehouse) -> ErrorRate:
    """The share of wrong answers in all traffic, from the verdicts on traces that were drawn for review.

    Verdicts on traces that were not drawn count nowhere: people open what looks bad.
    """
    decisions = (
        warehouse.query(
            "SELECT trace_id, any_value(keep_probability) AS keep FROM live_decisions GROUP BY trace_id"
        ).to_pylist()
        if warehouse.parts("live_decisions")
        else []
    )
    drawn = warehouse.read_or("review_queue", REVIEW_QUEUE).to_pylist()
    review = {row["trace_id"]: row["review_probability"] for row in drawn}
    verdicts = merge_annotations(warehouse.read_or("phoenix_annotations", ANNOTATIONS).to_pylist()).verdicts
    return true_error_rate(
        [row["keep"] for row in decisions],
        [
            verdicts[key].label != "correct" if (key := row["trace_id"]) in verdicts and key in review else None
            for row in decisions
        ],
        [review.get(row["trace_id"]) for row in decisions],
    )


def live_bias(warehouse: Warehouse, run: RunDirectory) -> "BiasRefit":
    """How far a run's logits are off on live traffic, from verdicts on traces drawn at random (`recalibrate`).

    `observer calibrate` mends it in a copy of the run.

    Raises:
        InputError: too few verdicts.
    """
    from observer_core.decision.load import load_scorer
    from observer_core.decision.recalibrate import estimate_shift, usable_verdicts

    labeled = traces_of(warehouse.read_or("labeled_traces", TRACES))
    verdicts = usable_verdicts([trace for trace in labeled if trace.label_source == "annotation"]).traces
    p = np.array([score.p_wrong for score in load_scorer(run).score(verdicts)])
    return estimate_shift(p, verdicts)
