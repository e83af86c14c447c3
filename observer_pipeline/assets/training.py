"""Group `training`: one asset per family, each a run directory and an MLflow run."""

from typing import Literal

import dagster as dg
from pydantic import Field

from observer_pipeline.assets.labels import dataset_splits
from observer_pipeline.assets.traces import OWNERS
from observer_pipeline.registry import Registry
from observer_pipeline.resources.build import HomeResource
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.training import champion_run, run_metadata, train_family

GROUP = "training"


class LayaConfig(dg.Config):
    """How Laya is trained; what is not set keeps the default of `observer train`."""

    start: Literal["preset", "champion"] = Field(
        default="preset", description="begin at the preset, or go on from the champion if it is a laya run"
    )
    preset: str = Field(default="laya-mini", description="which backbone, or an encoder's folder")
    epochs: float | None = Field(default=None, description="passes over the training split at most")
    learning_rate: float | None = Field(default=None, description="peak learning rate")
    lora_rank: int | None = Field(default=None, description="rank of the adapters")
    weights: bool = Field(default=True, description="count each trace by 1 / (keep × review probability)")
    seed: int = Field(default=0, description="seed of initialisation and order")


class BaselineConfig(dg.Config):
    """How the baseline is fitted."""

    weights: bool = Field(default=True, description="count each trace by 1 / (keep × review probability)")


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"torch", "mlflow"}, deps=[dataset_splits])
def laya_run(
    context: dg.AssetExecutionContext,
    config: LayaConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    """Laya (encoder with marker head), trained with LoRA, calibrated, exported, evaluated on the test split."""
    from observer_core.decision.train import TrainOptions

    chosen = {name: value for name, value in config.model_dump(exclude={"start"}).items() if value is not None}
    if config.start == "champion":
        chosen["init_from"] = champion_run("laya", Registry(mlflow, warehouse), home.home)
    options = TrainOptions(family="laya", **chosen)
    trained = train_family(context, options, home=home.home, warehouse=warehouse, mlflow=mlflow)
    return dg.MaterializeResult(metadata=run_metadata(trained, mlflow))


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"scikitlearn", "mlflow"}, deps=[dataset_splits])
def baseline_run(
    context: dg.AssetExecutionContext,
    config: BaselineConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    """The baseline: process features and evidence overlap in a logistic regression, what every model has to beat."""
    from observer_core.decision.train import TrainOptions

    options = TrainOptions(family="baseline", weights=config.weights)
    trained = train_family(context, options, home=home.home, warehouse=warehouse, mlflow=mlflow)
    return dg.MaterializeResult(metadata=run_metadata(trained, mlflow))
