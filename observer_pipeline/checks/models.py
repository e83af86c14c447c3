"""Checks on trained runs. Weights that are not finite block; the gate's verdict is reported and blocks nothing."""

from pathlib import Path

import dagster as dg

from observer_core.rundir import open_run
from observer_pipeline.assets.evaluation import model_comparison
from observer_pipeline.assets.training import baseline_run, kev_run, laya_run, stacked_run
from observer_pipeline.comparison import latest_verdict
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.weights import tensors_not_finite


def _finite_weights(family: str, asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=asset, name="finite_weights", blocking=True)
    def check(warehouse: Warehouse) -> dg.AssetCheckResult:
        """NaN or infinity in a checkpoint means that training diverged."""
        row = next(r for r in warehouse.read("training_runs").to_pylist() if r["family"] == family)
        bad, seen = tensors_not_finite(open_run(Path(row["run_dir"])))
        return dg.AssetCheckResult(
            passed=not bad,
            description=f"not finite: {', '.join(bad[:5])}" if bad else None,
            metadata={"not_finite": len(bad), "allowed": 0, "tensors": seen},
        )

    return check


laya_finite_weights = _finite_weights("laya", laya_run)
kev_finite_weights = _finite_weights("kev", kev_run)
stacked_finite_weights = _finite_weights("stacked", stacked_run)
baseline_finite_weights = _finite_weights("baseline", baseline_run)


@dg.asset_check(asset=model_comparison, blocking=False)
def promotion_gate(warehouse: Warehouse) -> dg.AssetCheckResult:
    """What the gate said of the challenger. It does not fail the night: `champion` obeys it."""
    verdict = latest_verdict(warehouse)
    return dg.AssetCheckResult(
        passed=verdict["promote"],
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(verdict["reasons"]),
        metadata={"numbers": dg.MetadataValue.json(verdict["numbers"])},
    )
