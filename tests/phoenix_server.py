"""A real Phoenix server for tests, in an environment of its own (its requirements clash with Dagster's and MLflow's)."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

PHOENIX = "arize-phoenix>=20,<21"
START_TIMEOUT_S = 300
"""A first start downloads the server; later ones take up to a minute and a half on two busy cores."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_phoenix(folder: Path) -> Iterator[str]:
    """Start a server on loopback with its data in `folder`; yields its base URL once it answers, then stops it."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PHOENIX_")} | {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    }
    folder.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            ["uvx", "--from", PHOENIX, "phoenix", "serve"],
            env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            _wait_until_healthy(url, server, folder / "server.log")
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"Phoenix ended at start: {log.read_text(errors='replace')[-2000:]}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"Phoenix did not answer within {START_TIMEOUT_S} s: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="session")
def phoenix_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of one server for all tests of the session; each test uses a project of its own."""
    if shutil.which("uvx") is None:
        pytest.skip("uvx is not installed; it runs the Phoenix server in an environment of its own")
    with running_phoenix(tmp_path_factory.mktemp("phoenix")) as url:
        yield url
