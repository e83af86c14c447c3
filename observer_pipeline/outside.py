"""What models from outside say of the test split: released checkpoints, Jev. They are compared, never promoted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from observer_core.errors import ObserverError
from observer_core.home import Home
from observer_core.traces.splits import split_of
from observer_core.traces.trace import Trace
from observer_pipeline.datasets import in_split, load_dataset
from observer_pipeline.registry import now
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import OUTSIDE_SCORERS

RELEASED, JEV = "released", "jev"


@dataclass(frozen=True, slots=True)
class Outside:
    """A scorer's predictions on the test split, or the `problem` why it was not run.

    `asked` is the checkpoint or model asked for, `note` how it was calibrated and what it cost.
    """

    scorer: str
    asked: str
    problem: str | None
    note: str
    predictions: pa.Table


def score_released(warehouse: Warehouse, checkpoint: str | None) -> Outside:
    """Score the test split with a released checkpoint; not again while neither it nor the data set changes.

    Args:
        checkpoint: a preset's name, a folder, or a hub id; `None` when none is configured.
    """
    from observer_core.decision.zero_shot import calibrated, released_scorer
    from observer_core.metrics.predictions import predict

    if checkpoint is None:
        problem = "no released checkpoint is configured; set OBSERVER_RELEASED_CHECKPOINT"
        return _store(warehouse, RELEASED, "", problem=problem)
    before = outside_scorers(warehouse).get(RELEASED)
    if before is not None and before.problem is None and before.asked == checkpoint:
        return before

    def score(traces: Sequence[Trace], test: Sequence[Trace]) -> tuple[pa.Table, str]:
        scorer, said = calibrated(released_scorer(checkpoint), traces, weights=True)
        return predict(RELEASED, scorer, test), said

    return _score(warehouse, RELEASED, checkpoint, score)


def score_jev(warehouse: Warehouse, home: Home, *, max_usd: float) -> Outside:
    """Score the test split with Jev, as the SDK's environment variables name it; no answer is paid for twice."""
    from observer_core.decision.jev.client import Server
    from observer_core.decision.jev.scorer import jev_cache, jev_scorer
    from observer_core.decision.zero_shot import calibrated
    from observer_core.metrics.predictions import predict

    def score(traces: Sequence[Trace], test: Sequence[Trace]) -> tuple[pa.Table, str]:
        scorer = jev_scorer(cache=jev_cache(home))
        cost = scorer.cost([*test, *(trace for trace in traces if split_of(trace) == "calibration")])
        cost.check(max_usd)
        fitted, said = calibrated(scorer, traces, weights=True)
        predictions = predict(JEV, fitted, test)
        return predictions, f"{said}; cost before: {cost}; then {scorer.jev.spent}"

    server = Server.from_env()
    return _score(warehouse, JEV, server.model if server else "", score)


def outside_scorers(warehouse: Warehouse) -> dict[str, Outside]:
    """Each outside scorer's last word. Predictions of an earlier data set do not count, and say so."""
    rows = warehouse.read_or("outside_scorers", OUTSIDE_SCORERS).to_pylist()
    sha = load_dataset(warehouse)[1]
    found = {}
    for row in rows:
        problem = row["problem"]
        if problem is None and row["dataset_sha"] != sha:
            problem = "its predictions are of an earlier data set; materialize it again"
        every = warehouse.read("outside_predictions")
        own = every.filter(pc.field("scorer") == row["scorer"]) if problem is None else every.slice(0, 0)
        found[row["scorer"]] = Outside(row["scorer"], row["asked"], problem, row["note"], own)
    return found


def _score(
    warehouse: Warehouse,
    name: str,
    asked: str,
    score: Callable[[Sequence[Trace], Sequence[Trace]], tuple[pa.Table, str]],
) -> Outside:
    """Score, and record what came of it: a model that cannot be asked is no reason to stop a night."""
    traces, _ = load_dataset(warehouse)
    try:
        predictions, note = score(traces, in_split(traces, "test"))
    except ObserverError as error:
        return _store(warehouse, name, asked, problem=str(error))
    return _store(warehouse, name, asked, note=note, predictions=predictions)


def _store(
    warehouse: Warehouse,
    name: str,
    asked: str,
    *,
    problem: str | None = None,
    note: str = "",
    predictions: pa.Table | None = None,
) -> Outside:
    from observer_core.metrics.predictions import PREDICTION_SCHEMA

    table = PREDICTION_SCHEMA.empty_table() if predictions is None else predictions
    row = {
        "scorer": name,
        "at": now(),
        "asked": asked,
        "problem": problem,
        "note": note,
        "dataset_sha": load_dataset(warehouse)[1],
    }
    warehouse.write("outside_predictions", table, part=name)
    warehouse.write("outside_scorers", pa.Table.from_pylist([row], schema=OUTSIDE_SCORERS), part=name)
    return Outside(name, asked, problem, note, table)
