"""Running the service: the reference of its settings, --check, reload by signal, counters that balance."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_collector import Collector
from serving.harness import Service, make_request, new_trace, wait_until
from serving.test_service import assert_balanced
from serving.test_switch import make_run

from observer_core.errors import InputError
from observer_core.policy import read_policy
from observer_core.validation import validated
from observer_serving.active import ACTIVE_FILE, active_of, read_active
from observer_serving.config import SERVICE, Settings, read_settings
from observer_serving.config.reference import reference
from observer_serving.listen import bind

ROOT = Path(__file__).parents[2]
TRACE = {"question": "q", "final_answer": "a"}
LOOKS_AT_VARIED = {"name": "r", "when": {"evaluators": {"varied": {"max": 0.5}}}, "keep": 1}


def test_the_reference_is_current():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == reference(), "run: python -m observer_serving.config.reference docs/settings.md"
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert all(line.rstrip(" |").split(" | ")[-1] for line in rows), "every setting says what it means"


def test_the_environment_overrides_the_file(tmp_path: Path):
    file = tmp_path / "observer.yaml"
    file.write_text("policy: {random_share: 0.01, severity_high: 0.9}\nlisten: {api: null}\n")
    environment = {
        "OBSERVER__POLICY__RANDOM_SHARE": "0.03",
        "OBSERVER__DRAIN": "5s",
        "OBSERVER__EXPORTERS": "[{name: a, endpoint: 'http://x'}]",
        "OBSERVER_HOME": "/ignored",
    }
    settings = read_settings(file, environment)
    assert (settings.policy.random_share, settings.policy.severity_high) == (0.03, 0.9)
    assert (settings.drain, settings.exporters[0].name, settings.listen.api) == (5.0, "a", None)
    with pytest.raises(InputError, match=r"assembly\.colour"):
        read_settings(file, {"OBSERVER__ASSEMBLY__COLOUR": "blue"})


def run_check(folder: Path, settings: dict) -> subprocess.CompletedProcess[str]:
    file = folder / "check.yaml"
    file.write_text(yaml.safe_dump(settings))
    return subprocess.run(
        [sys.executable, "-c", "from observer_pipeline.cli import main; main()", "serve", "--check", "--config", file],
        env=os.environ | {"OBSERVER_HOME": str(folder / "home")}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_check_tells_a_wrong_file_from_a_back_end_that_does_not_answer(tmp_path: Path):
    run = make_run(tmp_path / "run", seed=1)
    scorer = {"kind": "local", "run": str(run.path)}
    with Collector() as back:
        good = run_check(tmp_path, {"scorer": scorer, "exporters": [{"name": "x", "endpoint": back.endpoint}]})
    assert (good.returncode, good.stderr) == (0, "")
    assert "configuration is valid" in good.stdout
    assert f"scorer: baseline {run.version}: ok" in good.stdout
    down = run_check(tmp_path, {"exporters": [{"name": "x", "endpoint": "http://127.0.0.1:9/v1/traces"}]})
    assert (down.returncode, down.stderr.count("\n")) == (1, 1)
    assert "configuration is valid" in down.stdout
    assert "cannot be reached: exporter x" in down.stderr
    wrong = run_check(tmp_path, {"scorer": {"kind": "local", "run": "/nowhere"}})
    assert (wrong.returncode, wrong.stderr.count("\n"), wrong.stdout) == (2, 1, "")


def test_sighup_puts_a_changed_file_in_force_and_a_bad_one_changes_nothing(service, tmp_path: Path):
    run = make_run(tmp_path / "run", seed=1)
    live: Service = service(policy={"keep_threshold": 0.9}, keys={"admin": "old"})
    live.client.headers["authorization"] = "Bearer old"
    live.hang_up(policy={"keep_threshold": 2})
    wait_until(lambda: bool(live.switches()))
    assert live.get("/v1/policy")["threshold"] == 0.9
    live.hang_up(
        policy={"keep_threshold": 0.1}, scorer={"kind": "local", "run": str(run.path)}, keys={"admin": "new"},
        redact={"attributes": ["secret"]}, drain="7s",
    )  # fmt: skip
    wait_until(lambda: httpx.get(live.api + "/v1/policy", headers={"authorization": "Bearer new"}).status_code == 200)
    assert httpx.get(live.api + "/v1/policy", headers={"authorization": "Bearer old"}).status_code == 401
    live.client.headers["authorization"] = "Bearer new"
    assert live.get("/v1/policy")["threshold"] == 0.1
    assert live.get("/v1/model")["model_version"] == run.version
    wait_until(lambda: "need_a_restart" in live.log())
    (line,) = [line for line in live.log_lines("observer_serving.app") if "need_a_restart" in line]
    assert (line["changed"], line["need_a_restart"]) == (["scorer", "policy", "keys", "redact"], ["drain"])
    assert [(line["action"], bool(line.get("refused"))) for line in live.switches()] == [
        ("reload", True), ("reload", False), ("reload", False),
    ]  # fmt: skip


def refusal_of(live: Service, **changes: object) -> str:
    """Why the changed file is not put in force."""
    before = len(live.switches())
    live.hang_up(**changes)
    wait_until(lambda: len(live.switches()) > before)
    return live.switches()[-1]["refused"]


def test_keys_do_not_go_while_strangers_reach_a_listener(service):
    """The file asks for loopback too, but the socket stays where it is until a restart."""
    listen = {"api": "0.0.0.0:0", "otlp_http": "127.0.0.1:0", "otlp_grpc": "127.0.0.1:0"}
    live: Service = service(listen=listen, api_key="abc", policy={"keep_threshold": 0.9})
    assert "listen.api: 0.0.0.0:0 can be reached" in refusal_of(
        live, listen=listen | {"api": "127.0.0.1:0"}, api_key=None, policy={"keep_threshold": 0.1}
    )
    assert live.client.get(live.api + "/v1/stats").status_code == 401
    assert live.client.put(live.api + "/v1/policy", json={"keep_threshold": 0.2}).status_code == 401
    live.client.headers["authorization"] = "Bearer abc"
    assert live.get("/v1/policy")["threshold"] == 0.9, "nothing of the reload is in force"


def test_a_policy_waits_for_its_evaluator_to_run(service):
    live: Service = service(policy={"keep_threshold": 0.9})
    policy = {"keep_threshold": 0.5, "rules": [LOOKS_AT_VARIED]}
    why = refusal_of(live, evaluators={"rewards": {"varied": "repetition"}}, policy=policy)
    assert "restart" in why
    assert "'varied'" in why
    answer = live.client.put(live.api + "/v1/policy", json=policy)
    assert (answer.status_code, "restart" in answer.json()["error"]) == (400, True)
    assert live.get("/v1/policy")["threshold"] == 0.9
    assert live.terminate() == 0
    live.start()
    assert live.get("/v1/policy")["threshold"] == 0.5


def test_a_policy_set_by_hand_outlives_no_evaluator(tmp_path: Path):
    with_evaluator = validated(Settings, {"evaluators": {"rewards": {"varied": "repetition"}}})
    active = active_of(with_evaluator)[SERVICE]
    by_hand = replace(active, policy=read_policy({"rules": [LOOKS_AT_VARIED]}))
    (tmp_path / ACTIVE_FILE).write_text(json.dumps(by_hand.to_json()))
    assert read_active(tmp_path, with_evaluator)[SERVICE].policy == by_hand.policy
    with pytest.raises(InputError, match=r"'varied'; add it to evaluators\.rewards"):
        read_active(tmp_path, Settings())


def test_counters_balance_with_everything_going_on_at_once(service):
    live: Service = service(policy={"review_budget": {"share": 0.5}, "random_share": 0.3})
    for _ in range(20):
        whole = make_request(new_trace(3))
        part = ExportTraceServiceRequest()
        part.CopyFrom(whole)
        del part.resource_spans[0].scope_spans[0].spans[2]
        whole.resource_spans[0].scope_spans[0].spans.add(trace_id=b"short", span_id=b"short")
        live.export(part)
        live.export(whole)  # two duplicates, one new, one rejected
        live.post_trace(TRACE)
        httpx.post(live.api + "/v1/traces", json={"question": "q", "final_answer": 5}, timeout=30)  # rejected
    wait_until(lambda: _balanced(live))
    live.wait_for_decisions(40)
    wait_until(lambda: _balanced(live))
    assert live.metrics()["observer_spans_rejected_total"] == 20


def _balanced(live: Service) -> bool:
    """The counters are read while the engine counts: they balance at the latest a moment later."""
    try:
        assert_balanced(live)
    except AssertionError:
        return False
    return True


def test_answers_do_not_wait_for_the_client_to_confirm_their_head():
    with bind("api", "127.0.0.1:0") as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_was_set_aside_is_seen_where_an_operator_looks(service):
    live = service()
    assert live.get("/v1/stats")["undeliverable"] == 0
    aside = live.home / "serving" / "undeliverable"
    aside.mkdir()
    for name in ("aa.pb", "aa.late-00.pb", ".half-written"):
        (aside / name).touch()
    assert live.get("/v1/stats")["undeliverable"] == 2
    assert live.metrics()["observer_undeliverable_files"] == 2
