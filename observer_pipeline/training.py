"""One night's training of one family: from the data set to a run directory and an MLflow run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa

from observer_core.home import Home
from observer_core.rundir import RunDirectory
from observer_pipeline.datasets import load_dataset
from observer_pipeline.progress import log_progress
from observer_pipeline.registry import CHAMPION, Registry, now
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import TRAINING_RUNS, markdown

if TYPE_CHECKING:
    from observer_core.decision.train import TrainOptions


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
) -> Trained:
    """Train on the data set in the warehouse, follow it in MLflow, and note the run in the table `training_runs`.

    Raises:
        InputError: the data set is missing, empty, of one class or too small.
    """
    from observer_core.decision.train import train_run

    traces, sha = load_dataset(warehouse)
    name = f"{options.family}-{context.run.run_id[:8]}"
    out = home.ensure(home.runs) / name
    with mlflow.start_run(name, context=context, tags={"family": options.family, "dataset_sha": sha}) as tracked:
        tracked.log_params(asdict(options))
        run = train_run(
            traces, out, options, progress=log_progress(context, options.family), on_metric=tracked.log_metric
        )
        for metric, value in flat_metrics(run).items():
            tracked.log_metric(metric, value)
    row = {
        "family": options.family,
        "run_dir": str(run.path),
        "run_version": run.version,
        "mlflow_run_id": tracked.run_id,
        "dataset_sha": sha,
        "trained_at": now(),
    }
    warehouse.write("training_runs", pa.Table.from_pylist([row], schema=TRAINING_RUNS), part=options.family)
    return Trained(run, tracked.run_id, sha)


def champion_run(family: str, registry: Registry, home: Home) -> Path | None:
    """The champion's run directory if it is of this family; without one training begins at its preset."""
    champion = registry.at_alias(CHAMPION)
    if champion is None or champion.tags.get("family") != family:
        return None
    return registry.fetch(str(champion.version), home).path


def flat_metrics(run: RunDirectory) -> dict[str, float]:
    """The run's `metrics.json` as MLflow metrics: `<slice>/<metric>`, its interval as `….lo` and `….hi`."""
    out: dict[str, float] = {}
    for slice_name, metrics in run.metrics().items():
        for metric, estimate in metrics.items():
            for key, suffix in (("value", ""), ("lo", ".lo"), ("hi", ".hi")):
                if estimate.get(key) is not None:
                    out[f"{slice_name}/{metric}{suffix}"] = float(estimate[key])
    return out


def run_metadata(trained: Trained, mlflow: MlflowResource) -> dict[str, Any]:
    """What the asset shows of a trained run."""
    metrics = trained.run.metrics().get("all", {})
    rows = [
        {"metric": name, **{k: e.get(k) for k in ("value", "lo", "hi", "n")}}
        for name, e in sorted(metrics.items())
        if e.get("value") is not None
    ]
    return {
        "run_dir": dg.MetadataValue.path(str(trained.run.path)),
        "run_version": trained.run.version,
        "dataset_sha": trained.dataset_sha,
        "metrics": dg.MetadataValue.md(markdown(rows, limit=40)),
        "mlflow": dg.MetadataValue.url(mlflow.run_url(trained.mlflow_run_id)),
    }
