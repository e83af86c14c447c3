"""A warehouse, a registry and settings in a folder of the test; a trained run; traces that are easy to tell apart."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving.harness import Service

from observer_core.home import Home
from observer_core.rundir import RunDirectory
from observer_core.traces.trace import ToolCall, Trace
from observer_pipeline.registry import Registry
from observer_pipeline.resources.build import build_mlflow, build_warehouse
from observer_pipeline.resources.settings import Settings
from observer_pipeline.resources.warehouse import Warehouse

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def empty_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables and nothing in them; making them takes seconds, copying does not."""
    from observer_pipeline.resources.tracking import MlflowResource

    database = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    client = MlflowResource(tracking_uri=f"sqlite:///{database}", ui_url=NOWHERE).client()
    client.search_experiments()
    return database


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_mlflow: Path) -> Settings:
    """Settings with everything under `tmp_path` and addresses where nothing listens."""
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "home"))
    settings = Settings.from_env({"OBSERVER_PHOENIX_URL": NOWHERE, "OBSERVER_SERVICES": NOWHERE})
    settings.home.ensure(settings.home.mlflow)
    shutil.copy(empty_mlflow, settings.home.mlflow / "mlflow.db")
    return settings


@pytest.fixture
def home(settings: Settings) -> Home:
    return settings.home


@pytest.fixture
def warehouse(home: Home) -> Warehouse:
    return build_warehouse(home)


@pytest.fixture
def registry(settings: Settings, warehouse: Warehouse) -> Registry:
    return Registry(build_mlflow(settings), warehouse)


def easy_traces(n: int, *, seed: int = 0) -> list[Trace]:
    """Labeled runs, each of a user question of its own; failed tools and unsupported answers go with wrong labels."""
    rng = random.Random(seed)
    traces = []
    for i in range(n):
        wrong = rng.random() < 0.5
        noisy = wrong ^ (rng.random() < 0.15)
        traces.append(
            Trace(
                trace_id=f"{seed:04x}{i:028x}",
                qid=f"q{seed}-{i}",
                question=f"Who founded company number {i} of set {seed}?",
                tool_calls=[ToolCall("search", {"q": f"company {i}"}, status="error" if noisy else "ok")],
                evidence=[] if noisy else [f"Company {i} was founded by Founder {i}."],
                final_answer="not found" if noisy else f"Founder {i}",
                label="wrong" if wrong else "correct",
                gold_answer=f"Founder {i}",
                model="agent",
            )
        )
    return traces


@pytest.fixture(scope="session")
def baseline_runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunDirectory]:
    """Two runs of the baseline, trained on different traces."""
    from observer_core.decision.train import TrainOptions, train_run

    folder = tmp_path_factory.mktemp("runs")
    return [
        train_run(easy_traces(300, seed=seed), folder / f"baseline-{seed}", TrainOptions(family="baseline"))
        for seed in (1, 2)
    ]


@pytest.fixture
def versions(registry: Registry, baseline_runs: list[RunDirectory]) -> list[str]:
    """Both runs as versions of the registered model."""
    out = []
    for run in baseline_runs:
        with registry.mlflow.start_run(run.path.name) as tracked:
            out.append(registry.register(run, tracked, tags={}))
    return out


@pytest.fixture
def running_service(tmp_path: Path) -> Iterator[Service]:
    """The service in a process of its own, with the built-in heuristic."""
    service = Service(tmp_path / "service", {}).start()
    yield service
    service.kill()
