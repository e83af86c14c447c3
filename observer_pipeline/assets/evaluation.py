"""Group `evaluation`: models from outside, the night's challenger beside all others, and what the gate says of it."""

import base64
from typing import Any

import dagster as dg
from pydantic import Field

from observer_pipeline.assets.labels import dataset_splits
from observer_pipeline.assets.traces import OWNERS
from observer_pipeline.assets.training import baseline_run, kev_run, laya_run, stacked_run
from observer_pipeline.comparison import compare_night
from observer_pipeline.outside import Outside, score_jev, score_released
from observer_pipeline.registry import Registry
from observer_pipeline.resources.build import HomeResource, JudgesResource
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import markdown
from observer_pipeline.training import flat_metrics, metrics_table

GROUP = "evaluation"
_IMAGE_LIMIT = 70_000  # bytes before base64: metadata lies in Dagster's event log, where 100 kB is the most one wants
_SHOWN = ("auroc", "brier", "recall_at_5pct", "recall_at_20pct")


class ComparisonConfig(dg.Config):
    """What the gate asks for; what is not set keeps the gate's default."""

    min_test_questions: int | None = Field(default=None, description="fewest user questions in the test split")
    alpha: float | None = Field(default=None, description="chance of a false promotion, spent over all nights")


class JevConfig(dg.Config):
    """What asking Jev may cost."""

    max_usd: float = Field(default=1.0, description="most a run may cost by the estimate, in US dollars; else not run")


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"torch", "mlflow"}, deps=[dataset_splits])
def released_scores(
    context: dg.AssetExecutionContext, judges: JudgesResource, warehouse: Warehouse, mlflow: MlflowResource
) -> dg.MaterializeResult:
    """What a released checkpoint of Kev or Laya says of the test split without having seen our traces.

    Scored once per checkpoint and data set; 'not run' without a checkpoint in OBSERVER_RELEASED_CHECKPOINT.
    """
    outside = score_released(warehouse, judges.released_checkpoint)
    return dg.MaterializeResult(metadata=_outside_metadata(context, outside, mlflow))


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "mlflow"}, deps=[dataset_splits])
def jev_scores(
    context: dg.AssetExecutionContext,
    config: JevConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    """What Jev says of the test split; answers are kept, so a trace is paid for once. 'Not run' without a key."""
    outside = score_jev(warehouse, home.home, max_usd=config.max_usd)
    return dg.MaterializeResult(metadata=_outside_metadata(context, outside, mlflow))


def _outside_metadata(context: dg.AssetExecutionContext, outside: Outside, mlflow: MlflowResource) -> dict[str, Any]:
    """What the asset shows; the figures also go to MLflow, under the names every scorer has."""
    from observer_core.metrics.evaluate import evaluate, metrics_json

    if outside.problem is not None:
        context.log.warning(f"{outside.scorer} was not run: {outside.problem}")
        return {"ran": False, "not_run": outside.problem}
    metrics = metrics_json(evaluate(outside.predictions, outside.scorer))
    with mlflow.start_run(outside.scorer, context=context, tags={"family": outside.scorer}) as tracked:
        tracked.set_tags({"model": outside.asked})
        with tracked.metric_queue() as queue:
            for name, value in flat_metrics(metrics).items():
                queue.put(name, value)
    return {
        "ran": True,
        "asked": outside.asked,
        "note": outside.note,
        "metrics": dg.MetadataValue.md(metrics_table(metrics)),
        "mlflow": dg.MetadataValue.url(mlflow.run_url(tracked.run_id)),
    }


@dg.asset(
    group_name=GROUP,
    owners=OWNERS,
    kinds={"python", "mlflow"},
    deps=[laya_run, kev_run, baseline_run, stacked_run, released_scores, jev_scores],
)
def model_comparison(
    context: dg.AssetExecutionContext,
    config: ComparisonConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    """The challenger (best on validation) beside champion and all others on the test split, and the gate's verdict.

    The verdict is a result, not a failure: 'the champion stays' is a night that went well.
    """
    from observer_core.metrics.evaluate import metrics_of
    from observer_core.metrics.gate import GateSettings
    from observer_core.metrics.plots import plots
    from observer_core.metrics.predictions import sample_of, scorers_of

    chosen = {name: value for name, value in config.model_dump().items() if value is not None}
    night = compare_night(
        home.home, warehouse, Registry(mlflow, warehouse), GateSettings(**chosen), night=context.run.run_id
    )
    scorers = scorers_of(night.predictions)
    rows = []
    for scorer in scorers:
        metrics = metrics_of(sample_of(night.predictions, scorer))
        rows.append({"scorer": scorer, **{name: str(metrics[name]) for name in _SHOWN if name in metrics}})
    rows += [{"scorer": scorer, **dict.fromkeys(_SHOWN, "not run")} for scorer in night.not_run]
    verdict = night.verdict
    return dg.MaterializeResult(
        metadata={
            "promote": verdict.promote,
            "reasons": dg.MetadataValue.md("\n".join(f"- {reason}" for reason in verdict.reasons)),
            "metrics": dg.MetadataValue.md(markdown(rows)),
            "not_run": dg.MetadataValue.md("\n".join(f"- {name}: {why}" for name, why in night.not_run.items()) or "–"),
            "challenger": night.challenger.version,
            "champion": night.champion_version or "none yet",
            **{f"plot_{name}": _image(name, png) for name, png in plots(night.predictions, scorers).items()},
        }
    )


def _image(name: str, png: bytes) -> dg.MarkdownMetadataValue:
    if len(png) > _IMAGE_LIMIT:
        return dg.MetadataValue.md(f"{name}: {len(png) // 1000} kB, too large to show here; it is in the MLflow run")
    return dg.MetadataValue.md(f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})")
