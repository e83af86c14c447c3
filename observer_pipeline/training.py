"""One night's training of one family: from the data set to a run directory and an MLflow run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa

from observer_core.errors import InputError
from observer_core.home import Home
from observer_core.rundir import MANIFEST, METRICS, REPORT_HTML, REPORT_MD, STACKED_BASE, RunDirectory, open_run
from observer_core.traces.trace import Trace
from observer_pipeline.comparison import choose_challenger, trained_runs
from observer_pipeline.datasets import in_split, load_dataset
from observer_pipeline.progress import log_progress
from observer_pipeline.registry import CHAMPION, Registry, now
from observer_pipeline.resources.tracking import MlflowResource, MlflowRun
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.sources import load_traces
from observer_pipeline.tables import TRAINING_RUNS, markdown

if TYPE_CHECKING:
    from observer_core.decision.train import TrainOptions

LOGGED_FILES = (MANIFEST, METRICS, REPORT_MD, REPORT_HTML)


@dataclass(frozen=True, slots=True)
class Trained:
    """A run directory, the MLflow run that describes it, and the fingerprint of its data set."""

    run: RunDirectory
    mlflow_run_id: str
    dataset_sha: str


def train_family(
    context: dg.AssetExecutionContext,
    options: "TrainOptions",
    *,
    home: Home,
    warehouse: Warehouse,
    mlflow: MlflowResource,
    replay: str | None = None,
    otlp: str | None = None,
) -> Trained:
    """Train on the data set in the warehouse, follow it in MLflow, and note the run in the table `training_runs`.

    A retry or re-execution of a Dagster run that died goes on from the checkpoint the first one left.

    Args:
        replay: a source of earlier labeled traces to mix into the split `train`.
        otlp: the OTLP/HTTP address the training's spans go to.

    Raises:
        InputError: the data set is missing, empty, of one class or too small.
        TrainingFailedError: the training diverged or collapsed.
    """
    from observer_core.decision.training.telemetry import Telemetry

    traces, sha = load_dataset(warehouse)
    out = _run_folder(context, options.family, home)
    tags = {"family": options.family, "dataset_sha": sha}
    with mlflow.start_run(out.name, context=context, tags=tags) as tracked:
        run = train_tracked(
            traces,
            out,
            options,
            tracked,
            replay=load_traces(replay) if replay else (),
            telemetry=Telemetry(otlp, out.name) if otlp else None,
            progress=log_progress(context, options.family),
            warn=context.log.warning,
        )
    return _note(warehouse, Trained(run, tracked.run_id, sha))


def stack_newest(
    context: dg.AssetExecutionContext,
    *,
    base: str,
    weights: bool,
    home: Home,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> Trained:
    """Stack the newest run of a family, follow it in MLflow, and note it in the table `training_runs`.

    Args:
        base: `kev`, `laya`, or `best`: what `choose_challenger` takes.

    Raises:
        InputError: there is no such run, or the data set is missing, empty, of one class or too small.
    """
    from observer_core.decision.stack import stack_run

    traces, sha = load_dataset(warehouse)
    runs = {family: run for family, run in trained_runs(warehouse).items() if family in ("kev", "laya")}
    wanted = runs if base == "best" else {family: run for family, run in runs.items() if family == base}
    if not wanted:
        raise InputError(f"no run of {'kev or laya' if base == 'best' else base} to stack; train one first")
    model = choose_challenger(wanted, in_split(traces, "validation"))
    out = home.ensure(home.runs) / f"stacked-{context.run.run_id[:8]}"
    tags = {"family": "stacked", "dataset_sha": sha}
    with mlflow.start_run(out.name, context=context, tags=tags) as tracked:
        tracked.log_params({"base": f"{model.path.name}@{model.version}", "weights": weights})
        run = stack_run(model, traces, out, weights=weights, progress=log_progress(context, "stacked"))
        with tracked.metric_queue() as metrics:
            for name, value in flat_metrics(run.metrics()).items():
                metrics.put(name, value)
        _describe(run, tracked)
    return _note(warehouse, Trained(run, tracked.run_id, sha))


def _note(warehouse: Warehouse, trained: Trained) -> Trained:
    family = trained.run.manifest.family
    row = {
        "family": family,
        "run_dir": str(trained.run.path),
        "run_version": trained.run.version,
        "mlflow_run_id": trained.mlflow_run_id,
        "dataset_sha": trained.dataset_sha,
        "trained_at": now(),
    }
    warehouse.write("training_runs", pa.Table.from_pylist([row], schema=TRAINING_RUNS), part=family)
    return trained


def _run_folder(context: dg.AssetExecutionContext, family: str, home: Home) -> Path:
    """Named after the Dagster run, or after the one this re-executes if that left a checkpoint."""
    from observer_core.decision.training.checkpoints import partial_of

    runs = home.ensure(home.runs)
    first = runs / f"{family}-{(context.run.root_run_id or context.run.run_id)[:8]}"
    return first if partial_of(first).is_dir() else runs / f"{family}-{context.run.run_id[:8]}"


def train_tracked(
    traces: Sequence[Trace],
    out: Path,
    options: "TrainOptions",
    tracked: MlflowRun,
    *,
    warn: Callable[[str], None],
    **how: Any,
) -> RunDirectory:
    """Train (`train_run`, with its keyword arguments `how`) and log to an MLflow run.

    Logged are the options, the metrics of every step, the figures of the evaluation, the data's fingerprint and the
    report. The files of the run directory itself go into the registry with the model.

    Args:
        warn: told if MLflow did not take all metrics; training does not stop for that.

    Raises:
        ObserverError: training failed.
    """
    from observer_core.decision.train import train_run

    tracked.log_params(asdict(options))
    with tracked.metric_queue() as metrics:
        run = train_run(traces, out, options, on_metric=metrics.put, **how)
        for name, value in flat_metrics(run.metrics()).items():
            metrics.put(name, value)
    _describe(run, tracked)
    if metrics.lost:
        warn(metrics.lost)
    return run


def _describe(run: RunDirectory, tracked: MlflowRun) -> None:
    manifest = run.manifest
    tracked.set_tags(
        {
            "family": manifest.family,
            "model": manifest.model,
            "run_version": run.version,
            "train_data_sha": str(manifest.train_data_sha),
            "init_from": str(manifest.init_from),
        }
    )
    for name in LOGGED_FILES:
        tracked.log_bytes((run.path / name).read_bytes(), f"report/{name}")


def champion_run(family: str, registry: Registry, home: Home) -> Path | None:
    """The run directory of this family that is champion, by itself or inside a stacked run.

    Without one training begins at its preset.
    """
    champion = registry.at_alias(CHAMPION)
    if champion is None:
        return None
    run = registry.fetch(str(champion.version), home)
    if run.manifest.family == "stacked":
        run = open_run(run.checkpoint / STACKED_BASE)
    return run.path if run.manifest.family == family else None


def flat_metrics(metrics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """What `metrics.json` holds as MLflow metrics: `<slice>/<metric>`, its interval as `….lo` and `….hi`."""
    out: dict[str, float] = {}
    for slice_name, part in metrics.items():
        for metric, estimate in part.items():
            for key, suffix in (("value", ""), ("lo", ".lo"), ("hi", ".hi")):
                if estimate.get(key) is not None:
                    out[f"{slice_name}/{metric}{suffix}"] = float(estimate[key])
    return out


def metrics_table(metrics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The figures on all traces as a Markdown table; what has no value is left out."""
    rows = [
        {"metric": name, **{k: e.get(k) for k in ("value", "lo", "hi", "n")}}
        for name, e in sorted(metrics.get("all", {}).items())
        if e.get("value") is not None
    ]
    return markdown(rows, limit=40)


def run_metadata(trained: Trained, mlflow: MlflowResource) -> dict[str, Any]:
    """What the asset shows of a trained run."""
    return {
        "run_dir": dg.MetadataValue.path(str(trained.run.path)),
        "run_version": trained.run.version,
        "dataset_sha": trained.dataset_sha,
        "metrics": dg.MetadataValue.md(metrics_table(trained.run.metrics())),
        "mlflow": dg.MetadataValue.url(mlflow.run_url(trained.mlflow_run_id)),
    }
