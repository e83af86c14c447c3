"""Examples and deployment files: each example passes `--check`, each file is what its reader expects."""

import configparser
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from serving.test_switch import make_run

from observer_serving.config import read_settings

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
DEPLOY = ROOT / "deploy"
KEYS = {
    name: "https://hooks.invalid/x" if name == "SLACK_WEBHOOK" else "key"
    for name in ("TYPESAFE_API_KEY", "OBSERVER_INGEST_KEY", "OBSERVER_READ_KEY", "OBSERVER_ADMIN_KEY",
                 "OBSERVER_HASH_KEY", "SLACK_WEBHOOK", "LANGFUSE_BASIC_AUTH")
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs that the examples name exist."""
    made = tmp_path_factory.mktemp("examples")
    for seed, name in enumerate(("react", "cheap")):
        make_run(made / "runs" / name, seed=seed)
    return made


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_is_valid_and_only_what_runs_elsewhere_is_missing(example: Path, folder: Path):
    """The scorers elsewhere are put on a closed local port, so that no test speaks to the internet."""
    closed = folder / example.name
    text = example.read_text()
    for host in ("https://api.typesafe.ai", "http://scorer.internal:8010", "http://127.0.0.1:8010",
                 "https://cloud.langfuse.com"):  # fmt: skip
        text = text.replace(host, "http://127.0.0.1:9")
    for host in ("phoenix.internal:6006", "signoz-otel-collector.internal:4317", "collector.internal:4317",
                 "127.0.0.1:6006"):  # fmt: skip
        text = text.replace(host, "127.0.0.1:9")
    closed.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", "from observer_pipeline.cli import main; main()", "serve", "--check", "--config", closed],
        env=os.environ | KEYS | {"OBSERVER_HOME": str(folder / "home")}, cwd=folder, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert "configuration is valid" in done.stdout, done.stderr
    elsewhere = "127.0.0.1:9" in text
    assert done.returncode == (1 if elsewhere else 0), done.stderr
    if elsewhere:
        assert "is valid, but cannot be reached" in done.stderr


def test_the_examples_cover_what_people_ask_for():
    named = {path.stem for path in EXAMPLES}
    assert {
        "hosted-jev",
        "own-run",
        "json-only",
        "large-budget",
        "remote",
        "cascade",
        "dry-run",
        "observer",
        "langfuse",
    } <= named


def test_compose_and_kubernetes_agree_with_the_settings():
    settings = read_settings(DEPLOY / "observer.yaml", KEYS)
    ports = {int(str(address).rpartition(":")[2]) for address in settings.listen.addresses().values()}
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert {"observer", "nats", "phoenix"} <= services.keys()
    assert {int(port.rpartition(":")[2]) for port in services["observer"]["ports"]} == ports
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))
    used = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == compose["volumes"].keys()
    service, workload = yaml.safe_load_all((DEPLOY / "kubernetes" / "observer.yaml").read_text())
    pod = workload["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert workload["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert {port["port"] for port in service["spec"]["ports"]} == ports
    (container,) = pod["spec"]["containers"]
    assert {port["containerPort"] for port in container["ports"]} == ports
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in workload["spec"]["volumeClaimTemplates"]}
    assert mounted == claims | {volume["name"] for volume in pod["spec"]["volumes"]}
    assert pod["spec"]["terminationGracePeriodSeconds"] > settings.drain


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_kubernetes_accepts_the_manifests(version: str):
    manifests = [*yaml.safe_load_all((DEPLOY / "kubernetes" / "observer.yaml").read_text())]
    assert len(manifests) == 2
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_compose_accepts_the_file():
    checker = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [checker, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_image_is_built_from_the_packages_alone():
    """The context is the whole checkout; virtual environments and runs beside the packages are many gigabytes."""
    rules = [line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] != "#"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "README.md", "LICENSE", *wheel["packages"], *wheel["force-include"]}
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == needed


def test_the_collector_balances_by_trace_id_and_loses_nothing_while_a_replica_restarts():
    collector = yaml.safe_load((DEPLOY / "collector.yaml").read_text())
    balancing = collector["exporters"]["loadbalancing"]
    assert balancing["routing_key"] == "traceID"
    assert balancing["protocol"]["otlp"]["sending_queue"]["enabled"]
    assert balancing["protocol"]["otlp"]["retry_on_failure"]["enabled"]
    (pipeline,) = collector["service"]["pipelines"].values()
    assert {*pipeline["receivers"], *pipeline["exporters"]} == {*collector["receivers"], *collector["exporters"]}


def test_the_unit_reloads_by_the_signal_the_service_knows():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read(DEPLOY / "observer.service")
    assert unit["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "observer serve --config" in unit["Service"]["ExecStart"]
    assert float(unit["Service"]["TimeoutStopSec"]) > read_settings(None, {}).drain


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit():
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", DEPLOY / "observer.service"], capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if "observer.service" in line and "not executable" not in line]
    assert said == []
