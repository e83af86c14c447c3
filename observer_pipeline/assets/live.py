"""Group `live`: what the services decided, what they serve, and how often live answers are wrong."""

from dataclasses import asdict
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field

from observer_core.errors import InputError, ObserverError
from observer_core.rundir import RunDirectory
from observer_pipeline.assets.labels import labeled_traces, phoenix_annotations, review_queue
from observer_pipeline.assets.registry import champion
from observer_pipeline.assets.traces import OWNERS
from observer_pipeline.live import DRIFTS, ERROR_RATES, SERVED, live_bias, live_error_rate, live_scores, score_drift
from observer_pipeline.registry import Registry, now
from observer_pipeline.resources.build import HomeResource
from observer_pipeline.resources.services import ServiceResource
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.rollout import find_promotion, roll_out
from observer_pipeline.spool import pending, take
from observer_pipeline.tables import markdown

GROUP = "live"


class RolloutConfig(dg.Config):
    """Which promotion to bring onto which service first; with neither, the asset only asks what is served."""

    service: str | None = Field(default=None, description="JSON API of the service to roll onto")
    promotion_id: str | None = Field(default=None, description="which promotion to roll out")


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"parquet"})
def live_decisions(home: HomeResource, warehouse: Warehouse) -> dg.MaterializeResult:
    """Decisions, later outcomes and kept traces from the services' spools; every sealed file is taken exactly once."""
    sealed = pending(home.spools, warehouse)
    rows = take(sealed, warehouse)
    counts = (
        warehouse.query(
            "SELECT decision, reason, count(*) AS traces, avg(p_wrong) AS mean_p_wrong FROM live_decisions "
            "GROUP BY ALL ORDER BY ALL"
        ).to_pylist()
        if warehouse.parts("live_decisions")
        else []
    )
    return dg.MaterializeResult(
        metadata={
            "files": len(sealed),
            **{f"new_{table}": count for table, count in rows.items()},
            "dagster/row_count": sum(row["traces"] for row in counts),
            "decisions": dg.MetadataValue.md(markdown(counts)),
        }
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python"}, deps=[champion])
def served_model(
    config: RolloutConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
    services: ServiceResource,
) -> dg.MaterializeResult:
    """What each service says it serves; given a promotion and a service, that is rolled out first."""
    outcome = None
    if config.service and config.promotion_id:
        registry = Registry(mlflow, warehouse)
        promotion = find_promotion(registry, config.promotion_id)
        outcome = roll_out(registry, services, config.service, promotion, home.home)
    rows = []
    for url in services.urls:
        try:
            said = services.model(url)
            row = {"model": said["model"], "model_version": said["model_version"], "problem": None}
        except ObserverError as error:
            row = {"model": None, "model_version": None, "problem": str(error)}
        rows.append({"service": url, **row, "asked_at": now()})
    warehouse.write("served_models", pa.Table.from_pylist(rows, schema=SERVED))
    metadata: dict[str, dg.MetadataValue] = {"services": dg.MetadataValue.md(markdown(rows, cut=200))}
    if outcome is not None and outcome.outcome == "failed":
        raise dg.Failure(f"rollout failed: {outcome.message}", metadata=metadata, allow_retries=False)
    if outcome is not None:
        metadata["rollout"] = dg.MetadataValue.json(asdict(outcome))
    return dg.MaterializeResult(metadata=metadata)


@dg.asset(
    group_name=GROUP,
    owners=OWNERS,
    kinds={"parquet", "duckdb"},
    deps=[live_decisions, phoenix_annotations, review_queue],
)
def true_error_rate(context: dg.AssetExecutionContext, warehouse: Warehouse) -> dg.MaterializeResult:
    """The share of wrong answers in live traffic, from reviewed traces by strata with known counts."""
    rate = live_error_rate(warehouse)
    estimate = rate.estimate
    row = {"at": now(), **estimate.to_json(), "reason": estimate.reason}
    warehouse.write("error_rates", pa.Table.from_pylist([row], schema=ERROR_RATES), part=context.run.run_id)
    return dg.MaterializeResult(
        metadata={
            "true_error_rate": str(estimate),
            "strata": dg.MetadataValue.md(markdown([asdict(s) for s in rate.strata])),
            "out_of_scope": rate.out_of_scope,
            **({"value": estimate.value} if estimate.value is not None else {}),
        }
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"parquet", "duckdb"}, deps=[live_decisions, labeled_traces, champion])
def drift(
    context: dg.AssetExecutionContext, home: HomeResource, warehouse: Warehouse, mlflow: MlflowResource
) -> dg.MaterializeResult:
    """Whether the champion scores live traces otherwise than it scored its validation split, and how far off it is.

    `bias` is what reviewed live traces say its logits are off by; `observer calibrate` mends that in a copy of the run.
    """
    registry = Registry(mlflow, warehouse)
    promotion = registry.current()
    live = live_scores(warehouse, promotion.version) if promotion else []
    run = registry.fetch(promotion.version, home.home) if promotion else None
    reference = run.manifest.validation_scores if run else []
    if promotion is None or run is None or not live or not reference:
        why = "no champion yet" if promotion is None else "the champion has not scored live traces yet"
        return dg.MaterializeResult(metadata={"drifted": False, "not_compared": why})
    found = score_drift(live, reference)
    row = {"at": now(), "model_version": promotion.version, **asdict(found)}
    warehouse.write("drifts", pa.Table.from_pylist([row], schema=DRIFTS), part=context.run.run_id)
    return dg.MaterializeResult(
        metadata={
            "drifted": found.drifted,
            "distance": found.distance,
            "compared": dg.MetadataValue.md(markdown([row])),
            **_bias(warehouse, run),
        }
    )


def _bias(warehouse: Warehouse, run: RunDirectory) -> dict[str, Any]:
    try:
        refit = live_bias(warehouse, run)
    except InputError as error:
        return {"bias_not_known": str(error)}
    value, lo, hi = refit.shift.value, refit.shift.lo, refit.shift.hi
    off = lo is not None and hi is not None and not lo <= 0 <= hi
    return {"bias": float(value or 0.0), "bias_interval": str(refit.shift), "biased": off, "bias_means": str(refit)}
