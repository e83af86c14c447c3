"""All resources, set up from the settings."""

from pathlib import Path

import dagster as dg
from dagster_duckdb import DuckDBResource

from observer_core.home import Home
from observer_pipeline.resources.phoenix import PhoenixResource
from observer_pipeline.resources.services import ServiceResource
from observer_pipeline.resources.settings import Settings
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse


class HomeResource(dg.ConfigurableResource):
    """OBSERVER_HOME, and where the services seal their spool files."""

    root: str
    spools: list[str]

    @property
    def home(self) -> Home:
        return Home(Path(self.root))


class JudgesResource(dg.ConfigurableResource):
    """Models from outside to compare with; Jev is set up by the SDK's own environment variables."""

    released_checkpoint: str | None


def build_warehouse(home: Home) -> Warehouse:
    """The warehouse under OBSERVER_HOME, with DuckDB in memory over it."""
    return Warehouse(root=str(home.warehouse), duckdb=DuckDBResource(database=":memory:"))


def build_mlflow(settings: Settings) -> MlflowResource:
    """MLflow's store and where people open it."""
    return MlflowResource(tracking_uri=settings.mlflow_uri, ui_url=settings.mlflow_url)


def build_resources(settings: Settings) -> dict[str, dg.ConfigurableResource]:
    """The resources by the names that assets ask for them."""
    return {
        "home": HomeResource(root=str(settings.home.root), spools=list(settings.spools)),
        "judges": JudgesResource(released_checkpoint=settings.released_checkpoint),
        "warehouse": build_warehouse(settings.home),
        "mlflow": build_mlflow(settings),
        "phoenix": PhoenixResource(
            base_url=settings.phoenix_url, project=settings.phoenix_project, api_key=settings.phoenix_api_key
        ),
        "services": ServiceResource(urls=list(settings.services), api_key=settings.service_key),
    }
