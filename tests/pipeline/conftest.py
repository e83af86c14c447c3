"""A warehouse, a registry and settings in a folder of the test."""

from pathlib import Path

import pytest

from observer_core.home import Home
from observer_pipeline.registry import Registry
from observer_pipeline.resources.build import build_mlflow, build_warehouse
from observer_pipeline.resources.settings import Settings
from observer_pipeline.resources.warehouse import Warehouse


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with everything under `tmp_path` and addresses where nothing listens."""
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path))
    return Settings.from_env(
        {"OBSERVER_PHOENIX_URL": "http://127.0.0.1:9", "OBSERVER_SERVICES": "http://127.0.0.1:9"}
    )


@pytest.fixture
def home(settings: Settings) -> Home:
    return settings.home


@pytest.fixture
def warehouse(home: Home) -> Warehouse:
    return build_warehouse(home)


@pytest.fixture
def registry(settings: Settings, warehouse: Warehouse) -> Registry:
    """A registry on a fresh SQLite store."""
    return Registry(build_mlflow(settings), warehouse)
