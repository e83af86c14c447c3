"""Live traffic as the warehouse knows it: how often its answers are wrong."""

import pyarrow as pa

from observer_core.metrics.error_rate import ErrorRate, true_error_rate
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import ANNOTATIONS, REVIEW_QUEUE
from observer_pipeline.verdicts import merge_annotations

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
