"""Group `training`: one asset per family, each a run directory and an MLflow run."""

from pathlib import Path
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from observer_core.home import Home
from observer_pipeline.assets.labels import dataset_splits
from observer_pipeline.assets.traces import OWNERS
from observer_pipeline.registry import Registry
from observer_pipeline.resources.build import HomeResource
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.training import champion_run, run_metadata, stack_newest, train_family

GROUP = "training"


class LoraConfig(dg.Config):
    """How a model family is trained; what is not set keeps the default of `observer train`."""

    start: Literal["preset", "champion"] = Field(
        default="preset", description="begin at the preset, or go on from the champion if it is of this family"
    )
    epochs: float | None = Field(default=None, description="passes over the training split at most")
    learning_rate: float | None = Field(default=None, description="peak learning rate")
    lora_rank: int | None = Field(default=None, description="rank of the adapters")
    tokens_per_batch: int | None = Field(default=None, description="padded tokens computed at once")
    accumulate: int | None = Field(default=None, description="batches per optimiser step")
    gradient_checkpointing: bool = Field(default=False, description="less memory, a third slower")
    precision: Literal["auto", "fp32", "bf16"] = Field(default="auto", description="of the arithmetic")
    failure: bool = Field(default=False, description="also learn which seeded fault a trace has, a choice question")
    permute_options: bool = Field(default=True, description="choice options in a new order each epoch")
    replay: str | None = Field(default=None, description="earlier labeled traces (any source) to mix into training")
    replay_share: float = Field(default=0.3, description="what they are to make up of the training traces")
    otlp: str | None = Field(default=None, description="OTLP/HTTP address that gets a span per step and example")
    checkpoint_seconds: float = Field(default=60.0, description="a killed training loses at most this much time")
    weights: bool = Field(default=True, description="count each trace by 1 / (keep × review probability)")
    seed: int = Field(default=0, description="seed of initialisation and order")

    def chosen(self) -> dict[str, Any]:
        """The fields of `TrainOptions` that are set here."""
        other = {"start", "replay", "otlp"}
        return {name: value for name, value in self.model_dump(exclude=other).items() if value is not None}


class LayaConfig(LoraConfig):
    """How Laya is trained."""

    preset: str = Field(default="laya-mini", description="which backbone, or an encoder's folder")


class KevConfig(LoraConfig):
    """How Kev is trained."""

    preset: str = Field(default="kev-mini", description="which backbone, a decoder's folder, or a released checkpoint")
    base: str | None = Field(default=None, description="the folder of a released checkpoint's backbone, without a hub")
    max_tokens: int | None = Field(default=None, description="tokens of a row: question, options and state")

    def chosen(self) -> dict[str, Any]:
        return super().chosen() | ({"base": Path(self.base)} if self.base else {})


class StackedConfig(dg.Config):
    """What the stacked run is made of."""

    base: Literal["best", "laya", "kev"] = Field(
        default="best", description="whose newest run; best is the one with the lower Brier score on validation"
    )
    weights: bool = Field(default=True, description="count each trace by 1 / (keep × review probability)")


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
    return _train_lora(context, "laya", config, home.home, warehouse, mlflow)


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"torch", "mlflow"}, deps=[dataset_splits])
def kev_run(
    context: dg.AssetExecutionContext,
    config: KevConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    """Kev (causal decoder with pointer head), trained with LoRA, calibrated, exported, evaluated on the test split.

    It takes several times as long as Laya, so the nightly job trains it only with OBSERVER_NIGHTLY_KEV=true; the newest
    run takes part in every comparison.
    """
    return _train_lora(context, "kev", config, home.home, warehouse, mlflow)


def _train_lora(
    context: dg.AssetExecutionContext,
    family: Literal["kev", "laya"],
    config: LoraConfig,
    home: Home,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    from observer_core.decision.training.options import TrainOptions, refuse_idle

    chosen = config.chosen()
    if config.start == "champion":
        champion = champion_run(family, Registry(mlflow, warehouse), home)
        if champion is not None:
            refuse_idle(family, chosen)
        chosen["init_from"] = champion
    trained = train_family(
        context,
        TrainOptions(family=family, **chosen),
        home=home,
        warehouse=warehouse,
        mlflow=mlflow,
        replay=config.replay,
        otlp=config.otlp,
    )
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


@dg.asset(
    group_name=GROUP,
    owners=OWNERS,
    kinds={"scikitlearn", "mlflow"},
    deps=[dataset_splits, laya_run, kev_run],
)
def stacked_run(
    context: dg.AssetExecutionContext,
    config: StackedConfig,
    home: HomeResource,
    warehouse: Warehouse,
    mlflow: MlflowResource,
) -> dg.MaterializeResult:
    """The newest model's logit and the baseline's features in one calibrated logistic layer."""
    trained = stack_newest(
        context, base=config.base, weights=config.weights, home=home.home, warehouse=warehouse, mlflow=mlflow
    )
    return dg.MaterializeResult(metadata=run_metadata(trained, mlflow))
