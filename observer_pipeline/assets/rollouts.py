"""Group `rollouts`: stored RL training runs, graded again, as spans, and what went wrong in them."""

import json
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from observer_core.errors import InputError
from observer_core.files import whole_file
from observer_core.rewards import find_rewards, known_rewards
from observer_core.rollouts.columns import Columns
from observer_core.rollouts.emit import EmitOptions, emit
from observer_core.rollouts.features import extract
from observer_core.rollouts.findings import analyze
from observer_core.rollouts.monitor import step_metrics
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, previous_revisions, regrade, rewards_for
from observer_core.rollouts.report import write_report
from observer_core.rollouts.store import write_store
from observer_pipeline.assets.traces import OWNERS
from observer_pipeline.registry import now
from observer_pipeline.resources.build import HomeResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import markdown

GROUP = "rollouts"
SOURCES = "rollout_sources"
"""Table: where each run's log lies and how it is read; the other assets of the group open it again."""


class RolloutLogConfig(dg.Config):
    """Which log to take in."""

    path: str = Field(description="rollout log: a Parquet or JSONL file, or a folder of them")
    run: str | None = Field(default=None, description="name of the run; the log's name by default")
    dataset: str | None = Field(default=None, description="the prompts' data set (gold answers), joined by prompt")
    columns: dict[str, str] = Field(default={}, description="meaning → column, where the names are not the usual ones")
    rewards: list[str] | None = Field(default=None, description="the log's reward columns; found by default")


class RunConfig(dg.Config):
    """Which run to look at."""

    run: str | None = Field(default=None, description="name of the run; the one taken in last by default")
    rewards: list[str] = Field(default=[], description="rewards to run: NAME or COLUMN=module:function")
    endpoint: str | None = Field(default=None, description="OTLP/HTTP address that the run's spans go to")
    workers: int = Field(default=0, description="processes that grade; 0: one per CPU")


def _open(config: RolloutLogConfig) -> RolloutLog:
    rewards = None if config.rewards is None else tuple(config.rewards)
    dataset = Path(config.dataset) if config.dataset else None
    return RolloutLog(Path(config.path), Columns(**config.columns, rewards=rewards), dataset=dataset, run=config.run)


def taken_in(warehouse: Warehouse, run: str | None) -> RolloutLog:
    """The log of a run, opened again from where it lay.

    Raises:
        InputError: no such run was taken in.
    """
    rows = warehouse.read(SOURCES).to_pylist()
    chosen = [row for row in rows if run in (None, row["run"])]
    if not chosen:
        raise InputError(f"no run {run!r} was taken in; there are: {', '.join(sorted(row['run'] for row in rows))}")
    return _open(RolloutLogConfig(**json.loads(max(chosen, key=lambda row: row["at"])["config"])))


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"parquet"})
def rollout_log(config: RolloutLogConfig, warehouse: Warehouse) -> dg.MaterializeResult:
    """A run's completions in canonical columns, one part per run; what was broken in the log is named."""
    log = _open(config)
    rows = 0
    file = warehouse.folder("rollout_log") / f"{part_of(log)}.parquet"
    with whole_file(file) as aside, pq.ParquetWriter(aside, log.schema, compression="zstd") as writer:
        for batch in log.batches():
            writer.write_batch(batch)
            rows += batch.num_rows
    source = {"run": log.run, "at": now(), "config": json.dumps(config.model_dump() | {"run": log.run})}
    warehouse.write(SOURCES, pa.Table.from_pylist([source]), part=part_of(log))
    return dg.MaterializeResult(
        metadata={
            "run": log.run,
            "dagster/row_count": rows,
            "rewards": ", ".join(log.rewards),
            "problems": dg.MetadataValue.md("\n".join(f"- {line}" for line in log.problems.lines()) or "none"),
        }
    )


@dg.asset(
    group_name=GROUP,
    owners=OWNERS,
    kinds={"python", "parquet"},
    deps=[rollout_log],
    check_specs=[dg.AssetCheckSpec("fidelity", asset="regraded_rollouts", blocking=True)],
)
def regraded_rollouts(config: RunConfig, home: HomeResource, warehouse: Warehouse) -> dg.MaterializeResult:
    """The rewards run again over the log; blocks what follows when they do not give the logged scores."""
    log = taken_in(warehouse, config.run)
    out = home.home.root / "rollouts" / part_of(log)
    rewards = rewards_for(log, config.rewards)
    options = GradeOptions(workers=config.workers)
    result = regrade(log, rewards, options, out=out, previous=previous_revisions(out))
    warehouse.write("regraded_rollouts", pq.read_table(out / "regraded.parquet"), part=part_of(log))
    rows = [{"reward": name, **drift.to_json()} for name, drift in result.fidelity.rewards.items()]
    sentence = result.fidelity.sentence(result.changed)
    check = dg.AssetCheckResult(
        check_name="fidelity",
        passed=result.fidelity.holds,
        description=sentence,
        metadata={"tolerance": result.fidelity.tolerance, "drift": dg.MetadataValue.md(markdown(rows))},
    )
    return dg.MaterializeResult(
        metadata={"run": log.run, "dagster/row_count": result.rows, "failures": result.failures.total()},
        check_results=[check],
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"opentelemetry", "parquet"}, deps=[regraded_rollouts])
def rollout_spans(config: RunConfig, home: HomeResource, warehouse: Warehouse) -> dg.MaterializeResult:
    """The run as spans: in the warehouse for questions, and at an OTLP back end when one is named."""
    log = taken_in(warehouse, config.run)
    rewards = find_rewards(config.rewards) if config.rewards else known_rewards(log.rewards)
    grading = GradeOptions(workers=config.workers)
    spans = write_store(log, rewards, warehouse.folder("rollout_spans") / f"run={part_of(log)}", grading)
    metadata: dict[str, int | str] = {"run": log.run, "dagster/row_count": spans}
    if config.endpoint:
        state = home.home.ensure(home.home.root / "rollouts") / f"emit-{part_of(log)}.json"
        metadata["sent"] = emit(log, rewards, EmitOptions(config.endpoint, state=state), grading).spans
    return dg.MaterializeResult(metadata=metadata)


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python"}, deps=[rollout_log])
def reward_findings(config: RunConfig, home: HomeResource, warehouse: Warehouse) -> dg.MaterializeResult:
    """Collapses, exploits, habits and failures of the run, with evidence and plots; and its metrics per step.

    It needs the log, not the gate: a reward that fails the gate is among what it finds.
    """
    log = taken_in(warehouse, config.run)
    features = extract(log)
    analysis = analyze(features)
    folder = home.home.root / "rollouts" / f"{part_of(log)}-findings"
    write_report(folder, analysis, log)
    columns = ("kind", "sentence", "count", "share")
    found = [{name: finding.to_json(0)[name] for name in columns} for finding in analysis.findings]
    schema = pa.schema([("run", pa.string()), ("kind", pa.string()), ("sentence", pa.string())])
    schema = schema.append(pa.field("count", pa.int64())).append(pa.field("share", pa.float64()))
    rows = pa.Table.from_pylist([{"run": log.run, **row} for row in found], schema)
    warehouse.write("reward_findings", rows, part=part_of(log))
    metrics = [
        {"run": log.run, "step": step, "metric": name, "value": value}
        for step, values in step_metrics(features)
        for name, value in values.items()
    ]
    warehouse.write("rollout_metrics", pa.Table.from_pylist(metrics), part=part_of(log))
    return dg.MaterializeResult(
        metadata={
            "run": log.run,
            "dagster/row_count": len(found),
            "findings": dg.MetadataValue.md(markdown(found, cut=400) if found else "nothing was found"),
            "rejected": dg.MetadataValue.md(markdown(analysis.rejected, cut=200)),
            "report": dg.MetadataValue.path(str(folder / "report.md")),
        }
    )


def part_of(log: RolloutLog) -> str:
    """A run's name as the name of a part of a table."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in log.run).lstrip("._-") or "run"
