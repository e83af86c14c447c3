"""Every judge in one night: stacked runs, released checkpoints, Jev, and what the comparison makes of them."""

import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
from decision.conftest import easy_traces, quick, tiny_encoder  # noqa: F401  (a fixture)
from decision.test_jev import reference
from jevcompat import mock
from pipeline.test_graph import materialize

from observer_core.decision.recalibrate import usable_verdicts
from observer_core.decision.train import TrainOptions, train_run
from observer_core.home import Home
from observer_core.metrics.predictions import scorers_of
from observer_core.rundir import RunDirectory
from observer_core.traces.splits import split_of
from observer_core.traces.trace import Trace
from observer_pipeline.assets import evaluation, training
from observer_pipeline.checks import models
from observer_pipeline.comparison import trained_runs
from observer_pipeline.datasets import split_rows
from observer_pipeline.live import live_bias
from observer_pipeline.outside import outside_scorers
from observer_pipeline.registry import CHAMPION, Registry
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import TRAINING_RUNS, traces_table
from observer_pipeline.training import champion_run, flat_metrics


@pytest.fixture(scope="module")
def runs(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:  # noqa: F811
    folder = tmp_path_factory.mktemp("runs")
    options = {"laya": quick(tiny_encoder), "baseline": TrainOptions(family="baseline")}
    return {name: train_run(easy_traces(240), folder / name, of) for name, of in options.items()}


def give(warehouse: Warehouse, registry: Registry, runs: dict[str, RunDirectory], traces: list[Trace]) -> None:
    """A data set, and a trained run of each family with its MLflow run."""
    labeled = traces_table(traces)
    warehouse.write("labeled_traces", labeled)
    warehouse.write("dataset_splits", split_rows(labeled))
    for family, run in runs.items():
        with registry.mlflow.start_run(run.path.name) as tracked:
            row = {
                "family": family, "run_dir": str(run.path), "run_version": run.version,
                "mlflow_run_id": tracked.run_id, "dataset_sha": "", "trained_at": "1",
            }  # fmt: skip
        warehouse.write("training_runs", pa.Table.from_pylist([row], schema=TRAINING_RUNS), part=family)


def metadata(result: dg.ExecuteInProcessResult, asset: str) -> dict:
    (made,) = result.asset_materializations_for_node(asset)
    return {name: entry.value for name, entry in made.metadata.items()}


def test_every_judge_meets_the_same_test_traces(settings, warehouse, registry, runs, tmp_path, monkeypatch):
    traces = easy_traces(240)
    give(warehouse, registry, runs, traces)
    test = sum(split_of(trace) == "test" for trace in traces)
    released = tmp_path / "released"
    shutil.copytree(runs["laya"].checkpoint, released)
    settings = settings.model_copy(update={"released_checkpoint": str(released)})
    assets = [training.stacked_run, evaluation.released_scores, evaluation.jev_scores, evaluation.model_comparison]
    config = mock.MockConfig(key="sesame")
    with reference(config) as url:
        monkeypatch.setenv("TYPESAFE_API_KEY", "sesame")
        monkeypatch.setenv("TYPESAFE_BASE_URL", url)
        monkeypatch.delenv("TYPESAFE_DEFAULT_MODEL", raising=False)
        result = materialize(settings, assets, checks=[models.stacked_finite_weights])
        asked = config.requests
        again = materialize(settings, assets[1:3])
        assert config.requests == asked, "no answer is paid for twice"
    assert all(check.passed for check in result.get_asset_check_evaluations())

    stacked = trained_runs(warehouse)["stacked"]
    assert stacked.manifest.init_from == f"laya@{runs['laya'].version}"
    predictions = warehouse.read("comparison_predictions")
    families = {run.version: family for family, run in trained_runs(warehouse).items()}
    del families[metadata(result, "model_comparison")["challenger"]]
    assert set(scorers_of(predictions)) == {"challenger", "released", "jev", *families.values()}
    assert all(predictions["scorer"].to_pylist().count(name) == test for name in scorers_of(predictions))

    jev = metadata(result, "jev_scores")
    assert jev["ran"] is True
    assert "about USD" in jev["note"]
    assert "calibrated (" in jev["note"]
    assert "answered by jevcompat-mock-0.1" in jev["note"]
    assert metadata(result, "released_scores")["asked"] == str(released)
    assert metadata(again, "released_scores")["note"] == metadata(result, "released_scores")["note"]

    client = registry.mlflow.client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for family in ("stacked", "released", "jev"):
        logged, *_ = client.search_runs(experiments, f"tags.family = '{family}' and metrics.`all/auroc` > 0")
        assert names_of(logged.data.metrics) == names_of(flat_metrics(runs["laya"].metrics()))


def names_of(metrics: dict[str, float]) -> set[str]:
    """Metric names without intervals, which not every value has, and without what is said of states."""
    return {name for name in metrics if not name.endswith((".lo", ".hi")) and "state_truncated" not in name}


def test_without_key_and_checkpoint_they_are_not_run_and_the_night_goes_on(
    settings, warehouse, registry, runs, monkeypatch
):
    give(warehouse, registry, runs, easy_traces(240))
    monkeypatch.delenv("TYPESAFE_API_KEY", raising=False)
    result = materialize(settings, [evaluation.released_scores, evaluation.jev_scores, evaluation.model_comparison])
    assert metadata(result, "jev_scores")["not_run"].startswith("no key in TYPESAFE_API_KEY")
    assert "OBSERVER_RELEASED_CHECKPOINT" in metadata(result, "released_scores")["not_run"]
    night = metadata(result, "model_comparison")
    assert "- jev: no key in TYPESAFE_API_KEY" in night["not_run"]
    assert "| jev | not run |" in night["metrics"]
    assert set(scorers_of(warehouse.read("comparison_predictions"))) == {"challenger", "baseline"}


@pytest.mark.parametrize(
    ("key", "max_usd", "reason"), [("sesame", 0.0, "needs your agreement"), ("wrong", 1.0, "check the key")]
)
def test_a_judge_that_cannot_be_asked_stops_no_night(
    settings, warehouse, registry, runs, monkeypatch, key, max_usd, reason
):
    give(warehouse, registry, runs, easy_traces(240))
    config = mock.MockConfig(key="sesame")
    with reference(config) as url:
        monkeypatch.setenv("TYPESAFE_API_KEY", key)
        monkeypatch.setenv("TYPESAFE_BASE_URL", url)
        result = materialize(settings, [evaluation.jev_scores], jev_scores={"max_usd": max_usd})
    assert reason in metadata(result, "jev_scores")["not_run"]
    assert outside_scorers(warehouse)["jev"].predictions.num_rows == 0


def test_predictions_of_an_earlier_data_set_do_not_count(settings, warehouse, registry, runs, monkeypatch):
    traces = easy_traces(240)
    give(warehouse, registry, runs, traces)
    with reference() as url:
        monkeypatch.setenv("TYPESAFE_API_KEY", "any")
        monkeypatch.setenv("TYPESAFE_BASE_URL", url)
        materialize(settings, [evaluation.jev_scores])
    assert outside_scorers(warehouse)["jev"].problem is None
    give(warehouse, registry, runs, traces[1:])
    assert "earlier data set" in str(outside_scorers(warehouse)["jev"].problem)


def test_training_goes_on_from_the_model_inside_a_stacked_champion(warehouse, registry, runs, home: Home, settings):
    give(warehouse, registry, runs, easy_traces(240))
    materialize(settings, [training.stacked_run])
    stacked = trained_runs(warehouse)["stacked"]
    with registry.mlflow.start_run("stacked") as tracked:
        version = registry.register(stacked, tracked, tags={})
    registry.promote(version, reason="a test", by="person")
    assert registry.at_alias(CHAMPION) is not None
    inside = champion_run("laya", registry, home)
    assert inside is not None
    RunDirectory(inside, runs["laya"].manifest).verify()
    assert champion_run("kev", registry, home) is None


def test_live_verdicts_say_how_far_the_champion_is_off(warehouse, baseline_runs):
    """The run was made where half of the answers are wrong; of live ones every fifth is."""
    from pipeline.conftest import easy_traces as live_traces

    traces = [t for i, t in enumerate(live_traces(2000, seed=9)) if t.label == "correct" or i % 4 == 0]
    verdicts = [replace(t, label_source="annotation", keep_probability=0.02, review_probability=0.5) for t in traces]
    opened = [replace(t, label_source="annotation", trace_id=f"x{t.trace_id}", label="wrong") for t in traces[:300]]
    warehouse.write("labeled_traces", traces_table(verdicts + opened))
    refit = live_bias(warehouse, baseline_runs[0])
    assert refit.shift.hi is not None
    assert refit.shift.hi < 0
    counted = usable_verdicts(verdicts).traces
    assert refit.shift.n == len(counted), "verdicts of unknown selection, and those of training questions, do not count"
    assert refit.after == pytest.approx(np.mean([t.is_wrong for t in counted]))
