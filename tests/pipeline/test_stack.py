"""The whole stack: real daemon, real sensors, a real run started by one, and nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from pipeline.spool_files import decision_rows, seal

from observer_core.home import Home
from observer_pipeline.resources.build import build_warehouse

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

SENSORS = {"new_annotations", "ingest_spool", "rollout_champion", "run_failure_alert"}
TICKS = """
{ repositoriesOrError { ... on RepositoryConnection { nodes {
    sensors { name sensorState { status ticks(limit: 5) { status skipReason runIds } } }
    schedules { name scheduleState { status } } } } } }
"""
LAUNCH = """
mutation { launchRun(executionParams: {
  selector: {
    repositoryLocationName: "observer_pipeline.definitions", repositoryName: "__repository__", pipelineName: "first_model",
    assetSelection: [{path: ["questions"]}, {path: ["corpus"]}, {path: ["agent_traces"]}], assetCheckSelection: []
  },
  runConfigData: "{\\"ops\\": {\\"questions\\": {\\"config\\": {\\"questions\\": 4}}}}"
}) { __typename ... on PythonError { message } ... on RunConfigValidationInvalid { errors { message } } } }
"""
"""The agent runs in processes of its own, which not every kind of parent process may have."""


def free_ports(names: list[str]) -> dict[str, int]:
    probes = {name: socket.socket() for name in names}
    for probe in probes.values():
        probe.bind(("127.0.0.1", 0))
    ports = {name: probe.getsockname()[1] for name, probe in probes.items()}
    for probe in probes.values():
        probe.close()
    return ports


def graphql(url: str, query: str) -> dict:
    answer = httpx.post(f"{url}/graphql", json={"query": query}, timeout=30)
    answer.raise_for_status()
    return answer.json()["data"]


def wait_for(what: str, ready, deadline_s: float):
    until = time.monotonic() + deadline_s
    while not (found := ready()):
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(2)
    return found


def test_up_ticks_ingests_and_leaves_nothing_behind(tmp_path: Path):
    """MLflow, Dagster and the service; Phoenix has tests of its own and its start would double this one's time."""
    ports = free_ports(["mlflow", "dagster", "api", "otlp", "otlp_grpc"])
    home = Home(tmp_path / "home")
    command = [
        sys.executable, "-m", "observer_pipeline.cli", "up", "--only", "mlflow,dagster,service",
        "--ports", ",".join(f"{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    out = tmp_path / "out"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OBSERVER_", "DAGSTER_"))}
    with out.open("wb") as stream:
        up = subprocess.Popen(
            command, env=environment | {"OBSERVER_HOME": str(home.root)}, stdout=stream, stderr=stream
        )
    family: list[psutil.Process] = []
    try:
        wait_for(
            f"the stack: {out.read_text('utf-8')}",
            lambda: up.poll() is None and "Ctrl-C stops all" in out.read_text("utf-8"),
            400,
        )
        dagster = f"http://127.0.0.1:{ports['dagster']}"
        assert httpx.get(f"http://127.0.0.1:{ports['mlflow']}/health").is_success

        def all_ticked():
            (repository,) = graphql(dagster, TICKS)["repositoriesOrError"]["nodes"]
            states = {sensor["name"]: sensor["sensorState"] for sensor in repository["sensors"]}
            for state in states.values():  # a tick that is under way has no outcome yet
                state["ticks"] = [tick for tick in state["ticks"] if tick["status"] != "STARTED"]
            return states if all(states[name]["ticks"] for name in SENSORS) else None

        states = wait_for("every sensor to tick", all_ticked, 180)
        assert set(states) >= SENSORS
        for name, state in states.items():
            assert state["status"] == "RUNNING", name
            assert not [tick for tick in state["ticks"] if tick["status"] == "FAILURE"], (name, state)

        seal(home.spool, "decisions", "0001", decision_rows(3))
        warehouse = build_warehouse(home)
        wait_for("the daemon to run what ingest_spool asked for", lambda: warehouse.parts("live_decisions"), 180)
        assert warehouse.read("live_decisions").num_rows == 3

        launched = graphql(dagster, LAUNCH)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        wait_for("a run started from the webserver", lambda: warehouse.parts("agent_traces"), 240)
        assert warehouse.read("agent_traces").num_rows == 4
        family = psutil.Process(up.pid).children(recursive=True)
    finally:
        up.send_signal(signal.SIGTERM)
        code = up.wait(timeout=120)
    assert code == 0, out.read_text("utf-8")
    left = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left
    assert len(family) >= 6
    for port in ports.values():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert "all stopped" in out.read_text("utf-8")
