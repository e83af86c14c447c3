"""The night's challenger beside the champion and the baseline, on the same test traces."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from observer_core.errors import InputError
from observer_core.home import Home
from observer_core.rundir import RunDirectory, open_run
from observer_core.traces.trace import Trace
from observer_pipeline.datasets import in_split, load_dataset
from observer_pipeline.outside import outside_scorers
from observer_pipeline.registry import RUN_VERSION, Registry, now
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import GATE_VERDICTS

if TYPE_CHECKING:
    from observer_core.metrics.gate import GateSettings, GateVerdict

BASELINE = "baseline"
CHALLENGER, CHAMPION = "challenger", "champion"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predictions of every family, the champion and the models from outside on the test split, and the gate's verdict.

    The challenger is called `challenger`, other families by their name. `not_run` says why a model from outside is
    missing.
    """

    challenger: RunDirectory
    champion_version: str | None
    predictions: pa.Table
    verdict: "GateVerdict"
    not_run: dict[str, str]


def trained_runs(warehouse: Warehouse) -> dict[str, RunDirectory]:
    """The newest run of each family."""
    return {row["family"]: open_run(Path(row["run_dir"])) for row in warehouse.read("training_runs").to_pylist()}


def choose_challenger(runs: dict[str, RunDirectory], validation: Sequence[Trace]) -> RunDirectory:
    """The family with the lowest Brier score on `validation`; `test` is not looked at for the choice.

    A model that says the same of every trace (its calibration found nothing in its scores) ranks nothing, so one that
    does not goes before it: on few traces the base rate alone may well have the lowest Brier score.

    Raises:
        InputError: nothing but a baseline was trained.
    """
    from observer_core.decision.load import load_scorer

    candidates = [run for family, run in runs.items() if family != BASELINE]
    if not candidates:
        raise InputError("no challenger was trained; materialize laya_run or kev_run first")
    if len(candidates) == 1:
        return candidates[0]

    def is_flat_and_brier(run: RunDirectory) -> tuple[bool, float]:
        scores = [score.p_wrong for score in load_scorer(run).score(validation)]
        total = sum(t.weight for t in validation)
        brier = sum(t.weight * (p - t.is_wrong) ** 2 for t, p in zip(validation, scores, strict=True)) / total
        return len(set(scores)) == 1 < len(scores), brier

    return min(candidates, key=is_flat_and_brier)


def compare_night(
    home: Home, warehouse: Warehouse, registry: Registry, settings: "GateSettings", *, night: str
) -> Comparison:
    """Score the test split with every family and the champion, ask the gate, record its verdict under the name `night`.

    What models from outside said of the same traces is laid beside them.

    Every verdict recorded before is a look at the test set the gate has to pay for.
    """
    from observer_core.decision.load import load_scorer
    from observer_core.metrics.gate import gate
    from observer_core.metrics.predictions import predict

    traces, sha = load_dataset(warehouse)
    runs = trained_runs(warehouse)
    challenger = choose_challenger(runs, in_split(traces, "validation"))
    contenders = {CHALLENGER: challenger}
    contenders |= {family: run for family, run in runs.items() if run.path != challenger.path}
    champion_version = None
    if (champion := registry.at_alias(CHAMPION)) is not None:
        champion_version = champion.tags.get(RUN_VERSION)
        contenders[CHAMPION] = registry.fetch(str(champion.version), home)
    test = in_split(traces, "test")
    outside = outside_scorers(warehouse)
    predictions = pa.concat_tables(
        [
            *(predict(name, load_scorer(run), test) for name, run in contenders.items()),
            *(scorer.predictions for scorer in outside.values()),
        ]
    )
    verdict = gate(
        predictions,
        challenger=CHALLENGER,
        champion=CHAMPION if CHAMPION in contenders else None,
        baseline=BASELINE if BASELINE in contenders else None,
        settings=settings,
        nights_before=len([part for part in warehouse.parts("gate_verdicts") if part != night]),
    )
    row = {
        "at": now(),
        "challenger": challenger.version,
        "challenger_family": challenger.manifest.family,
        "champion": champion_version,
        "promote": verdict.promote,
        "reasons": json.dumps(verdict.reasons, ensure_ascii=False),
        "numbers": json.dumps(verdict.numbers, default=str),
        "dataset_sha": sha,
    }
    warehouse.write("gate_verdicts", pa.Table.from_pylist([row], schema=GATE_VERDICTS), part=night)
    warehouse.write("comparison_predictions", predictions)
    not_run = {name: scorer.problem for name, scorer in outside.items() if scorer.problem is not None}
    return Comparison(challenger, champion_version, predictions, verdict, not_run)


def latest_verdict(warehouse: Warehouse) -> dict[str, Any]:
    """The gate's last verdict: a row of `GATE_VERDICTS` with `reasons` and `numbers` read.

    Raises:
        InputError: the gate was never asked.
    """
    row = warehouse.read("gate_verdicts").sort_by("at").to_pylist()[-1]
    return row | {"reasons": json.loads(row["reasons"]), "numbers": json.loads(row["numbers"])}
