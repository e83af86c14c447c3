"""What Dagster loads, as a picture that a change has to change too."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from observer_pipeline.definitions import build_definitions

ROOT = Path(__file__).parents[2]

ASSETS = {
    "traces": {"questions", "corpus", "agent_traces"},
    "labels": {"gold_labels", "phoenix_annotations", "review_queue", "labeled_traces", "dataset_splits"},
    "training": {"laya_run", "kev_run", "baseline_run", "stacked_run"},
    "evaluation": {"released_scores", "jev_scores", "model_comparison"},
    "registry": {"registered_models", "champion"},
    "live": {"live_decisions", "served_model", "true_error_rate", "drift"},
    "rollouts": {"rollout_log", "regraded_rollouts", "rollout_spans", "reward_findings"},
}
CHECKS = {
    ("dataset_splits", "no_question_in_two_splits", True),
    ("dataset_splits", "both_classes_in_every_split", True),
    ("dataset_splits", "enough_labels", True),
    ("dataset_splits", "sample_weights_usable", True),
    ("laya_run", "finite_weights", True),
    ("kev_run", "finite_weights", True),
    ("stacked_run", "finite_weights", True),
    ("baseline_run", "finite_weights", True),
    ("model_comparison", "promotion_gate", False),
}
MODELS = (ASSETS["training"] | ASSETS["evaluation"] | ASSETS["registry"]) - {"kev_run"}
JOBS = {
    "first_model": ASSETS["traces"] | MODELS | {"gold_labels", "labeled_traces", "dataset_splits"},
    "nightly_retraining": MODELS
    | {"live_decisions", "phoenix_annotations", "labeled_traces", "dataset_splits", "true_error_rate", "drift"},
    "ingest": {"live_decisions", "review_queue"},
    "pull_annotations": {"phoenix_annotations", "labeled_traces", "dataset_splits", "true_error_rate"},
    "rollout": {"served_model"},
    "training_telemetry": ASSETS["rollouts"],
}  # fmt: skip


@pytest.fixture
def definitions(settings) -> dg.Definitions:
    return build_definitions(settings)


def test_the_graph(definitions):
    dg.Definitions.validate_loadable(definitions)
    specs = list(definitions.resolve_all_asset_specs())
    groups: dict[str, set[str]] = {}
    for spec in specs:
        groups.setdefault(str(spec.group_name), set()).add(spec.key.to_user_string())
    assert groups == ASSETS
    for spec in specs:
        assert spec.description, spec.key
        assert spec.owners == ["team:observer"], spec.key
        assert spec.kinds, spec.key
    checks = {
        (spec.asset_key.to_user_string(), spec.name, spec.blocking)
        for check in definitions.asset_checks or []
        for spec in check.check_specs
    }
    assert checks == CHECKS


def assets_of(definitions: dg.Definitions, job: str) -> set[str]:
    return {key.to_user_string() for key in definitions.resolve_job_def(job).asset_layer.selected_asset_keys}


def test_the_jobs(definitions):
    assert {name: assets_of(definitions, name) for name in JOBS} == JOBS


def test_a_setting_decides_whether_the_night_trains_kev(settings):
    with_kev = build_definitions(settings.model_copy(update={"nightly_kev": True}))
    assert assets_of(with_kev, "nightly_retraining") == JOBS["nightly_retraining"] | {"kev_run"}


def test_the_sensors_and_the_schedule_run_from_the_start(definitions):
    sensors = {sensor.name: sensor.default_status.value for sensor in definitions.sensors}
    assert sensors == dict.fromkeys(
        ("new_annotations", "ingest_spool", "rollout_champion", "reward_alerts", "run_failure_alert"), "RUNNING"
    )
    (schedule,) = definitions.schedules
    assert (schedule.name, schedule.cron_schedule, schedule.default_status.value) == (
        "nightly_retraining", "0 2 * * *", "RUNNING",
    )  # fmt: skip


def test_every_setting_of_a_run_is_described(definitions):
    """Descriptions are what people see in the launchpad."""
    configs = [config for config in dg.Config.__subclasses__() if config.__module__.startswith("observer_pipeline.")]
    assert len(configs) >= 6
    for config in configs:
        for name, field in config.model_fields.items():
            assert field.description, f"{config.__name__}.{name}"


@pytest.mark.heavy
@pytest.mark.parametrize("command", [["dagster", "definitions", "validate"]])
def test_dagster_finds_the_definitions_by_itself(tmp_path, command):
    """From the checkout's root, with nothing but workspace.yaml to go by."""
    environment = {**os.environ, "OBSERVER_HOME": str(tmp_path), "DAGSTER_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "observer_pipeline" in done.stdout + done.stderr
