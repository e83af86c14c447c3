"""Checks on the data set: all block, since a model trained on a broken one is worse than none."""

import dagster as dg

from observer_pipeline.assets.labels import dataset_splits
from observer_pipeline.datasets import SPLITS
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import markdown

MIN_LABELS = {"train": 40, "validation": 5, "calibration": 5, "test": 10}
"""Fewest labeled traces a split needs; with fewer, training and calibration only fit noise."""


@dg.asset_check(asset=dataset_splits, blocking=True)
def no_question_in_two_splits(warehouse: Warehouse) -> dg.AssetCheckResult:
    """A user question in two splits would let a model be tested on what it has learned by heart."""
    leaking = warehouse.query(
        "SELECT \"group\" AS question, string_agg(DISTINCT split, ', ') AS splits FROM dataset_splits "
        'GROUP BY "group" HAVING count(DISTINCT split) > 1 ORDER BY 1'
    ).to_pylist()
    return dg.AssetCheckResult(
        passed=not leaking,
        description=f"{len(leaking)} user questions are in more than one split" if leaking else None,
        metadata={"questions": len(leaking), "allowed": 0, "examples": dg.MetadataValue.md(markdown(leaking, limit=5))},
    )


@dg.asset_check(asset=dataset_splits, blocking=True)
def both_classes_in_every_split(warehouse: Warehouse) -> dg.AssetCheckResult:
    """Every split needs wrong and correct answers: nothing can be learned, calibrated or measured from one class."""
    from observer_core.decision.training.data import MIN_PER_CLASS

    rows = warehouse.query(
        "SELECT split, count(*) FILTER (label = 'correct') AS correct, count(*) FILTER (label != 'correct') AS wrong "
        "FROM dataset_splits GROUP BY split ORDER BY split"
    ).to_pylist()
    counts = {row["split"]: min(row["correct"], row["wrong"]) for row in rows}
    lacking = [
        f"{split} has {counts.get(split, 0)} of its rarer class and needs {least}"
        for split, least in MIN_PER_CLASS.items()
        if counts.get(split, 0) < least
    ]
    return dg.AssetCheckResult(
        passed=not lacking,
        description="; ".join(lacking) or None,
        metadata={
            "counts": dg.MetadataValue.md(markdown(rows)),
            "least": dg.MetadataValue.json({str(split): least for split, least in MIN_PER_CLASS.items()}),
        },
    )


@dg.asset_check(asset=dataset_splits, blocking=True)
def enough_labels(warehouse: Warehouse) -> dg.AssetCheckResult:
    """Every split needs a least number of labeled traces."""
    rows = warehouse.query("SELECT split, count(*) AS traces FROM dataset_splits GROUP BY split").to_pylist()
    counts = {row["split"]: row["traces"] for row in rows}
    short = [f"{s} has {counts.get(s, 0)} of {least}" for s, least in MIN_LABELS.items() if counts.get(s, 0) < least]
    return dg.AssetCheckResult(
        passed=not short,
        description="; ".join(short) or None,
        metadata={f"{s}": counts.get(s, 0) for s in SPLITS} | {f"{s}_least": n for s, n in MIN_LABELS.items()},
    )


@dg.asset_check(asset=dataset_splits, blocking=True)
def sample_weights_usable(warehouse: Warehouse) -> dg.AssetCheckResult:
    """A weight that is not finite and positive would poison every sum it enters."""
    row = warehouse.query(
        "SELECT count(*) FILTER (weight IS NULL OR NOT isfinite(weight) OR weight <= 0) AS bad, "
        "max(weight) AS largest FROM dataset_splits"
    ).to_pylist()[0]
    return dg.AssetCheckResult(
        passed=not row["bad"], metadata={"unusable": row["bad"], "allowed": 0, "largest": row["largest"] or 0.0}
    )
