"""The jobs: the whole loop at night, and the small ones that sensors and people start."""

from typing import TYPE_CHECKING

import dagster as dg

from observer_pipeline.resources.settings import Settings

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

TRAIN_TAGS = {"observer/kind": "train"}

_MODELS = (
    "laya_run", "baseline_run", "stacked_run", "released_scores", "jev_scores",
    "model_comparison", "registered_models", "champion",
)  # fmt: skip

first_model = dg.define_asset_job(
    "first_model",
    selection=dg.AssetSelection.assets(
        "questions", "corpus", "agent_traces", "gold_labels", "labeled_traces", "dataset_splits", *_MODELS
    ),
    description="From nothing to a registered model: the test agent runs, its answers are labeled, models are trained.",
    tags=TRAIN_TAGS,
)


def nightly_retraining(settings: Settings) -> "UnresolvedAssetJobDefinition":
    """The nightly job; whether it trains Kev too is a setting."""
    models = (*_MODELS, "kev_run") if settings.nightly_kev else _MODELS
    return dg.define_asset_job(
        "nightly_retraining",
        selection=dg.AssetSelection.assets(
            "live_decisions",
            "phoenix_annotations",
            "labeled_traces",
            "dataset_splits",
            *models,
            "true_error_rate",
            "drift",
        ),
        description="Verdicts become labels, labels become models, and the gate says whether the champion changes.",
        tags=TRAIN_TAGS,
    )


ingest = dg.define_asset_job(
    "ingest",
    selection=dg.AssetSelection.assets("live_decisions", "review_queue"),
    description="Take sealed spool files into the warehouse and draw kept traces for review.",
)

pull_annotations = dg.define_asset_job(
    "pull_annotations",
    selection=dg.AssetSelection.assets("phoenix_annotations", "labeled_traces", "dataset_splits", "true_error_rate"),
    description="Bring people's verdicts from Phoenix into the labels.",
)

rollout = dg.define_asset_job(
    "rollout",
    selection=dg.AssetSelection.assets("served_model"),
    description="Bring one promotion onto one service.",
)

training_telemetry = dg.define_asset_job(
    "training_telemetry",
    selection=dg.AssetSelection.groups("rollouts"),
    description="Take in a stored RL run, grade it again, trace it, and find what went wrong.",
)


def build_jobs(settings: Settings) -> "list[UnresolvedAssetJobDefinition]":
    """All jobs."""
    return [first_model, nightly_retraining(settings), ingest, pull_annotations, rollout, training_telemetry]
