"""Live traffic as the warehouse knows it: strata for the error rate, and how scores drift."""

import pyarrow as pa

from observer_pipeline.error_rate import CERTAIN, Reviewed, Stratum, stratum
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import ANNOTATIONS
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


def live_strata(warehouse: Warehouse) -> list[Stratum]:
    """Decisions by stratum with the verdicts of those drawn for review.

    Traces a rule drops for ever (keep probability 0) are outside of what is estimated. Verdicts on traces that were not
    drawn count nowhere: people open what looks bad.
    """
    if not warehouse.parts("live_decisions"):
        return []
    counts = warehouse.query(
        "SELECT keep_probability = 1 AS certain, count(DISTINCT trace_id) AS traces FROM live_decisions "
        "WHERE keep_probability > 0 GROUP BY 1"
    ).to_pylist()
    population = {row["certain"]: row["traces"] for row in counts}
    verdicts = merge_annotations(warehouse.read_or("phoenix_annotations", ANNOTATIONS).to_pylist()).verdicts
    drawn = (
        warehouse.query(
            "SELECT q.trace_id, any_value(d.keep_probability) AS keep, any_value(q.review_probability) AS review "
            "FROM review_queue q JOIN live_decisions d USING (trace_id) GROUP BY q.trace_id"
        ).to_pylist()
        if warehouse.parts("review_queue")
        else []
    )
    reviewed: dict[bool, list[Reviewed]] = {True: [], False: []}
    for row in drawn:
        if (verdict := verdicts.get(row["trace_id"])) is not None:
            reviewed[row["keep"] == CERTAIN].append(Reviewed(row["keep"], row["review"], verdict.label != "correct"))
    return [
        stratum("kept for certain", population.get(True, 0), reviewed[True]),
        stratum("kept at random", population.get(False, 0), reviewed[False]),
    ]
