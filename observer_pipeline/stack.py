"""The programs of a whole Observer on one machine: Phoenix, MLflow, Dagster, and the service, all on loopback."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import httpx

from observer_core.errors import InputError
from observer_core.files import write_whole
from observer_core.home import Home
from observer_pipeline.resources.settings import DEFAULT_PORTS
from observer_pipeline.supervise import Program, answers

LOOPBACK = "127.0.0.1"
PHOENIX_SERVER = "arize-phoenix>=20,<21"
"""Runs in an environment of its own: its graphql-core and MLflow's exclude each other."""
LOGS = "logs"


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the stack; gRPC's usual 4317, which Phoenix takes elsewhere, is left alone."""

    phoenix: int = DEFAULT_PORTS["phoenix"]
    phoenix_grpc: int = 14318
    mlflow: int = DEFAULT_PORTS["mlflow"]
    dagster: int = DEFAULT_PORTS["dagster"]
    api: int = DEFAULT_PORTS["api"]
    otlp: int = DEFAULT_PORTS["otlp"]
    otlp_grpc: int = 14317

    @classmethod
    def parse(cls, text: str | None) -> "Ports":
        """Read `name=port,name=port`; what is not named keeps its default.

        Raises:
            InputError: an unknown name, or no port number.
        """
        known = [f.name for f in fields(cls)]
        ports = cls()
        for item in (text or "").split(","):
            if not item.strip():
                continue
            name, _, value = (part.strip() for part in item.partition("="))
            if name not in known:
                raise InputError(f"--ports knows {', '.join(known)}, not '{name}'; write for example phoenix=16006")
            if not value.isdecimal() or not 0 < int(value) < 65536:
                raise InputError(f"--ports {name}= needs a port number from 1 to 65535, not '{value}'")
            ports = replace(ports, **{name: int(value)})
        return ports

    def url(self, name: str) -> str:
        return f"http://{LOOPBACK}:{getattr(self, name)}"


def stack_environment(home: Home, ports: Ports) -> dict[str, str]:
    """What every program of the stack gets told, so that they find each other; the user's own settings win."""
    ours = {
        "OBSERVER_HOME": str(home.root),
        "OBSERVER_PHOENIX_URL": ports.url("phoenix"),
        "OBSERVER_MLFLOW_URL": ports.url("mlflow"),
        "OBSERVER_SERVICES": ports.url("api"),
        "DAGSTER_HOME": str(home.dagster),
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes for evaluations nobody starts here
    }
    return {name: os.environ.get(name) or value for name, value in ours.items()}


def phoenix(home: Home, ports: Ports) -> Program:
    """The Phoenix server, by `uvx` (or `uv tool run`) from its own environment."""
    runner = [found] if (found := shutil.which("uvx")) else ["uv", "tool", "run"]
    if runner[0] == "uv" and not shutil.which("uv"):
        raise InputError(
            "Phoenix needs uv to run in its own environment; install uv or leave it out (--only, --no-phoenix)"
        )
    return Program(
        name="phoenix",
        command=[*runner, "--from", PHOENIX_SERVER, "phoenix", "serve"],
        ports={"phoenix": ports.phoenix, "phoenix_grpc": ports.phoenix_grpc},
        healthy=lambda: answers(f"{ports.url('phoenix')}/healthz"),
        url=ports.url("phoenix"),
        environment={
            "PHOENIX_HOST": LOOPBACK,
            "PHOENIX_PORT": str(ports.phoenix),
            "PHOENIX_GRPC_PORT": str(ports.phoenix_grpc),
            "PHOENIX_WORKING_DIR": str(home.ensure(home.phoenix)),
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
            "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
        },
        deadline_s=900,  # the first start downloads it
    )


def mlflow(home: Home, ports: Ports) -> Program:
    """MLflow's server over the same SQLite file the pipeline writes to."""
    folder = home.ensure(home.mlflow)
    return Program(
        name="mlflow",
        command=[
            sys.executable, "-m", "mlflow", "server",
            "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
            "--artifacts-destination", str(folder / "artifacts"),
            "--host", LOOPBACK, "--port", str(ports.mlflow), "--workers", "1",
        ],
        ports={"mlflow": ports.mlflow},
        healthy=lambda: answers(f"{ports.url('mlflow')}/health"),
        url=ports.url("mlflow"),
        environment=stack_environment(home, ports),
    )  # fmt: skip


def instance_settings() -> Path:
    """`dagster.yaml` as Observer ships it: beside this module in a wheel, under `deploy/` in a checkout."""
    here = Path(__file__).resolve().parent
    shipped = here / "dagster.yaml"
    return shipped if shipped.is_file() else here.parent / "deploy" / "dagster.yaml"


def prepare_dagster(home: Home) -> Path:
    """Make OBSERVER_HOME/dagster an instance: its `dagster.yaml` is put there unless the user has one."""
    folder = home.ensure(home.dagster)
    target = folder / "dagster.yaml"
    if not target.exists():
        write_whole(target, instance_settings().read_bytes())
    return folder


def dagster(home: Home, ports: Ports) -> Program:
    """Dagster's webserver and daemon with one code server between them."""
    prepare_dagster(home)
    return Program(
        name="dagster",
        command=[
            sys.executable, "-m", "dagster", "dev", "-m", "observer_pipeline.definitions",
            "--host", LOOPBACK, "--port", str(ports.dagster),
        ],
        ports={"dagster": ports.dagster},
        healthy=lambda: daemon_is_healthy(ports.url("dagster")),
        url=ports.url("dagster"),
        environment=stack_environment(home, ports),
    )  # fmt: skip


_DAEMON_QUERY = """
{ instance { daemonHealth { allDaemonStatuses { daemonType healthy required } } }
  workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError { __typename } } } } }
"""


def daemon_is_healthy(url: str) -> bool:
    """Whether the webserver answers, all required daemons have a fresh heartbeat, and our definitions are loaded."""
    try:
        response = httpx.post(f"{url}/graphql", json={"query": _DAEMON_QUERY}, timeout=5)
    except httpx.TransportError:
        return False
    if not response.is_success:
        return False
    data = response.json()["data"]
    daemons = data["instance"]["daemonHealth"]["allDaemonStatuses"]
    locations = data["workspaceOrError"].get("locationEntries", [])
    loaded = locations and all(
        entry["loadStatus"] == "LOADED" and entry["locationOrLoadError"]["__typename"] == "RepositoryLocation"
        for entry in locations
    )
    return bool(loaded) and all(daemon["healthy"] for daemon in daemons if daemon["required"])


def service_config(home: Home, ports: Ports, *, with_phoenix: bool = True) -> Path:
    """Write the `observer.yaml` of the stack's service: its listeners, and Phoenix as the back end."""
    import yaml

    config = {
        "listen": {
            "api": f"{LOOPBACK}:{ports.api}",
            "otlp_http": f"{LOOPBACK}:{ports.otlp}",
            "otlp_grpc": f"{LOOPBACK}:{ports.otlp_grpc}",
        },
        "spool": {"max_age": "10s"},  # one machine, few traces: people see their decisions in Dagster soon
        "exporters": [
            {
                "name": "phoenix",
                "kind": "otlp_http",
                "endpoint": f"{ports.url('phoenix')}/v1/traces",
                "project": os.environ.get("OBSERVER_PHOENIX_PROJECT") or "observer",
            }
        ]
        if with_phoenix
        else [],
    }
    path = home.ensure(home.serving) / "observer.up.yaml"
    write_whole(path, yaml.safe_dump(config, sort_keys=False).encode())
    return path


def service(home: Home, ports: Ports, config: Path | None = None) -> Program:
    """The scoring service; with `config` it runs that file, whose listeners must be those of `ports`."""
    config = config or service_config(home, ports)
    return Program(
        name="service",
        command=[sys.executable, "-m", "observer_pipeline.cli", "serve", "--config", str(config)],
        ports={"api": ports.api, "otlp": ports.otlp, "otlp_grpc": ports.otlp_grpc},
        healthy=lambda: answers(f"{ports.url('api')}/readyz"),
        url=ports.url("api"),
        environment=stack_environment(home, ports),
    )


PROGRAMS = {"phoenix": phoenix, "mlflow": mlflow, "dagster": dagster, "service": service}


def programs(home: Home, ports: Ports, only: Sequence[str], config: Path | None = None) -> list[Program]:
    """The programs of the stack in `only`, or all when it is empty.

    Raises:
        InputError: an unknown name.
    """
    unknown = [name for name in only if name not in PROGRAMS]
    if unknown:
        raise InputError(f"there is no program '{unknown[0]}'; --only knows {', '.join(PROGRAMS)}")
    makers = {**PROGRAMS, "service": lambda home, ports: service(home, ports, config)}
    return [make(home, ports) for name, make in makers.items() if not only or name in only]
