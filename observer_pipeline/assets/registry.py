"""Group `registry`: trained runs as versions of the registered model, and which of them should serve."""

import dagster as dg

from observer_pipeline.assets.evaluation import model_comparison
from observer_pipeline.assets.traces import OWNERS
from observer_pipeline.comparison import latest_verdict, trained_runs
from observer_pipeline.registry import CHAMPION, MODEL, RUN_VERSION, VALIDATION, Registry
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import markdown

GROUP = "registry"


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"mlflow"}, deps=[model_comparison])
def registered_models(warehouse: Warehouse, mlflow: MlflowResource) -> dg.MaterializeResult:
    """Every trained run as a version of `observer-decision-model`; the challenger carries the gate's verdict."""
    from observer_core.metrics.plots import plots
    from observer_core.metrics.predictions import scorers_of

    registry = Registry(mlflow, warehouse)
    verdict = latest_verdict(warehouse)
    mlflow_runs = {row["run_version"]: row["mlflow_run_id"] for row in warehouse.read("training_runs").to_pylist()}
    predictions = warehouse.read("comparison_predictions")
    rows = []
    for family, run in trained_runs(warehouse).items():
        tracked = mlflow.resume(mlflow_runs[run.version])
        is_challenger = run.version == verdict["challenger"]
        passed = "passed" if verdict["promote"] else "failed"
        version = registry.register(run, tracked, tags={VALIDATION: passed} if is_challenger else {})
        if is_challenger:
            registry.set_challenger(version)
            for name, png in plots(predictions, scorers_of(predictions)).items():
                tracked.log_bytes(png, f"plots/{name}.png")
        rows.append(
            {"version": version, "family": family, "run": run.version, "challenger": is_challenger,
             "mlflow": mlflow.model_url(MODEL, version)}
        )  # fmt: skip
    return dg.MaterializeResult(metadata={"versions": dg.MetadataValue.md(markdown(rows, cut=200))})


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"mlflow"}, deps=[registered_models])
def champion(warehouse: Warehouse, mlflow: MlflowResource) -> dg.MaterializeResult:
    """The version that should serve. It obeys the gate: the challenger is promoted, or the champion stays."""
    registry = Registry(mlflow, warehouse)
    verdict = latest_verdict(warehouse)
    reasons = "\n".join(f"- {reason}" for reason in verdict["reasons"])
    current = registry.at_alias(CHAMPION)
    already = current is not None and current.tags.get(RUN_VERSION) == verdict["challenger"]
    if verdict["promote"] and not already:
        version = registry.version_of(verdict["challenger"])
        assert version is not None, "registered_models runs before champion"
        registry.promote(version, reason="; ".join(verdict["reasons"]), by="gate")
    promotion = registry.current()
    if promotion is None:
        said = "No version is champion yet. `observer promote VERSION --reason …` makes one champion by hand."
    elif verdict["promote"]:
        said = f"Version {promotion.version} is champion."
    else:
        said = f"The champion stays: version {promotion.version}."
    log = [{"at": p.at, "version": p.version, "by": p.by, "reason": p.reason} for p in reversed(registry.promotions())]
    return dg.MaterializeResult(
        metadata={
            "verdict": dg.MetadataValue.md(f"{said}\n\n{reasons}"),
            "promotion_id": promotion.promotion_id if promotion else "none",
            "promotion_log": dg.MetadataValue.md(markdown(log, cut=200)),
            **({"mlflow": dg.MetadataValue.url(mlflow.model_url(MODEL, promotion.version))} if promotion else {}),
        }
    )
