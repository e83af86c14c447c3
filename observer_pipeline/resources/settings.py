"""Every setting of the pipeline, from the environment, read in one place."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from observer_core.errors import InputError
from observer_core.home import Home


def _comma_list(value: Any) -> Any:
    return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value


def _no_slash(value: Any) -> Any:
    return value.rstrip("/") if isinstance(value, str) else value


Url = Annotated[str, BeforeValidator(_no_slash), Field(pattern=r"^https?://[^\s/]+")]
Urls = Annotated[tuple[Url, ...], BeforeValidator(_comma_list)]
Names = Annotated[tuple[str, ...], BeforeValidator(_comma_list)]

DEFAULT_PORTS = {"api": 8080, "otlp": 4318, "phoenix": 6006, "mlflow": 5000, "dagster": 3000}


class Settings(BaseModel):
    """The pipeline's settings; field `x` is the environment variable `OBSERVER_X`. Empty values count as unset."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    home: Home
    mlflow_uri: str = Field(description="MLflow's tracking and registry store; default SQLite under OBSERVER_HOME")
    mlflow_url: Url = Field(
        default=f"http://127.0.0.1:{DEFAULT_PORTS['mlflow']}", description="where people open MLflow, for links"
    )
    phoenix_url: Url = f"http://127.0.0.1:{DEFAULT_PORTS['phoenix']}"
    phoenix_api_key: str | None = None
    phoenix_project: Annotated[str, Field(pattern=r"^[^/?#]+$")] = "observer"
    services: Urls = Field(
        default=(f"http://127.0.0.1:{DEFAULT_PORTS['api']}",), description="JSON API of every service to roll models to"
    )
    service_key: str | None = Field(default=None, description="admin key of those services")
    spools: Names = Field(description="folders or fsspec URLs the services seal their spool files in")
    nightly_kev: bool = Field(default=False, description="whether the nightly job trains Kev, which takes long")
    released_checkpoint: str | None = Field(
        default=None, description="a released checkpoint to compare with: a preset, a folder, or owner/name@revision"
    )
    alert_webhook: Url | None = Field(default=None, description="Slack-compatible; a failed run is posted there")
    nightly_cron: str = "0 2 * * *"
    timezone: str = "UTC"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read `OBSERVER_*`.

        Raises:
            InputError: a variable has an unusable value; names it.
        """
        environ = os.environ if environ is None else environ
        home = Home.from_env()
        values: dict[str, Any] = {"home": home}
        for name in cls.model_fields:
            value = environ.get(f"OBSERVER_{name.upper()}")
            if name != "home" and value:
                values[name] = value
        values.setdefault("mlflow_uri", f"sqlite:///{home.mlflow / 'mlflow.db'}")
        values.setdefault("spools", (str(home.spool),))
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = f"OBSERVER_{str(first['loc'][0]).upper()}"
            raise InputError(f"{name} is unusable: {first['msg']}; mend or unset it") from None
