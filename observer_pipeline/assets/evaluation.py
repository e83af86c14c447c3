"""Group `evaluation`: the night's challenger against champion and baseline, and what the gate says of it."""

import base64

import dagster as dg
from pydantic import Field

from observer_pipeline.assets.traces import OWNERS
from observer_pipeline.assets.training import baseline_run, laya_run
from observer_pipeline.comparison import compare_night
from observer_pipeline.registry import Registry
from observer_pipeline.resources.build import HomeResource
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import markdown

GROUP = "evaluation"
_IMAGE_LIMIT = 70_000  # bytes before base64: metadata lies in Dagster's event log, where 100 kB is the most one wants
_SHOWN = ("auroc", "brier", "recall_at_5pct", "recall_at_20pct")


class ComparisonConfig(dg.Config):
    """What the gate asks for; what is not set keeps the gate's default."""

    min_test_questions: int | None = Field(default=None, description="fewest user questions in the test split")
    alpha: float | None = Field(default=None, description="chance of a false promotion, spent over all nights")


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "mlflow"}, deps=[laya_run, baseline_run])
def model_comparison(
    context: dg.AssetExecutionContext,
    config: ComparisonConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    """The challenger (best on validation) beside champion and baseline on the test split, and the gate's verdict.

    The verdict is a result, not a failure: 'the champion stays' is a night that went well.
    """
    from observer_core.metrics.evaluate import evaluate
    from observer_core.metrics.gate import GateSettings
    from observer_core.metrics.plots import plots
    from observer_core.metrics.predictions import scorers_of

    chosen = {name: value for name, value in config.model_dump().items() if value is not None}
    night = compare_night(
        home.home, warehouse, Registry(mlflow, warehouse), GateSettings(**chosen), night=context.run.run_id
    )
    scorers = scorers_of(night.predictions)
    rows = []
    for scorer in scorers:
        metrics = evaluate(night.predictions, scorer)["all"]
        rows.append({"scorer": scorer, **{name: str(metrics[name]) for name in _SHOWN if name in metrics}})
    verdict = night.verdict
    return dg.MaterializeResult(
        metadata={
            "promote": verdict.promote,
            "reasons": dg.MetadataValue.md("\n".join(f"- {reason}" for reason in verdict.reasons)),
            "metrics": dg.MetadataValue.md(markdown(rows)),
            "challenger": night.challenger.version,
            "champion": night.champion_version or "none yet",
            **{f"plot_{name}": _image(name, png) for name, png in plots(night.predictions, scorers).items()},
        }
    )


def _image(name: str, png: bytes) -> dg.MarkdownMetadataValue:
    if len(png) > _IMAGE_LIMIT:
        return dg.MetadataValue.md(f"{name}: {len(png) // 1000} kB, too large to show here; it is in the MLflow run")
    return dg.MetadataValue.md(f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})")
