"""The jobs: the whole loop at night, and the small ones that sensors and people start."""

import dagster as dg

TRAIN_TAGS = {"observer/kind": "train"}

first_model = dg.define_asset_job(
    "first_model",
    selection=dg.AssetSelection.assets(
        "questions", "corpus", "agent_traces", "gold_labels", "labeled_traces", "dataset_splits",
        "laya_run", "baseline_run", "model_comparison", "registered_models", "champion",
    ),
    description="From nothing to a registered model: the test agent runs, its answers are labeled, models are trained.",
    tags=TRAIN_TAGS,
)  # fmt: skip

nightly_retraining = dg.define_asset_job(
    "nightly_retraining",
    selection=dg.AssetSelection.assets(
        "live_decisions", "phoenix_annotations", "labeled_traces", "dataset_splits",
        "laya_run", "baseline_run", "model_comparison", "registered_models", "champion", "true_error_rate", "drift",
    ),
    description="Verdicts become labels, labels become models, and the gate says whether the champion changes.",
    tags=TRAIN_TAGS,
)  # fmt: skip

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

JOBS = [first_model, nightly_retraining, ingest, pull_annotations, rollout, training_telemetry]
