"""The service as a whole: real processes, real clients, real files."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pyarrow.dataset as ds
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from serving.harness import BackEnd, Service, attributes, make_request, new_trace, summed, wait_until

KEEP_ALL = {"keep_threshold": 0.0}
DROP_ALL = {"keep_threshold": 1.0, "random_share": 0.0, "min_share": None}
TRACE = {
    "question": "Which river flows through Vienna?",
    "final_answer": "The Danube.",
    "tool_calls": [{"name": "search", "args": {"q": "Vienna"}, "status": "ok"}],
    "evidence": ["Vienna lies on the Danube."],
}


@pytest.fixture
def back_end():
    with BackEnd() as made:
        yield made


def assert_balanced(service: Service) -> None:
    """Received = kept + dropped + rejected + open, for traces and for spans."""
    m = service.metrics()
    traces = [
        summed(m, f"observer_traces_{name}") for name in ("kept_total", "dropped_total", "rejected_total", "open")
    ]
    assert summed(m, "observer_traces_received_total") == sum(traces)
    names = ("kept_total", "dropped_total", "rejected_total", "duplicate_total", "open")
    assert summed(m, "observer_spans_received_total") == sum(summed(m, f"observer_spans_{name}") for name in names)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_opentelemetry_sdk_exporters(shared_service: Service, transport: str):
    if transport == "http":
        exporter = HttpExporter(endpoint=shared_service.otlp_http + "/v1/traces")
    else:
        exporter = GrpcExporter(endpoint=shared_service.otlp_grpc, insecure=True)
    provider = TracerProvider(resource=Resource({"service.name": f"sdk-{transport}"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    ids = set()
    for _ in range(20):
        with tracer.start_as_current_span("run") as root:
            root.set_attribute("input.value", "Which river?")
            root.set_attribute("output.value", "The Danube.")
            with tracer.start_as_current_span("search", attributes={"openinference.span.kind": "TOOL"}):
                pass
        ids.add(f"{root.get_span_context().trace_id:032x}")
    provider.shutdown()
    wait_until(lambda: ids <= {d["trace_id"] for d in shared_service.decisions()})
    mine = [d for d in shared_service.decisions() if d["trace_id"] in ids]
    assert {(d["spans"], d["project"], d["complete_reason"], d["model"]) for d in mine} == {
        (2, f"sdk-{transport}", "root_ended", "builtin")
    }


def test_kept_traces_reach_the_back_end_with_the_decision_on_the_root(service, back_end: BackEnd):
    live = service(policy=KEEP_ALL, exporters=[{"name": "phoenix", "endpoint": back_end.endpoint, "project": "p"}])
    trace_id, span_ids = new_trace(3)
    request = make_request((trace_id, span_ids))
    live.export(request)
    posted = live.post_trace(TRACE)
    wait_until(lambda: len(back_end.spans()) == 5)
    received = {s.span_id: s for s in back_end.spans() if s.trace_id == trace_id}
    sent = {s.span_id: s for s in request.resource_spans[0].scope_spans[0].spans}
    decision = live.get(f"/v1/decisions/{trace_id.hex()}")
    root = attributes(received[span_ids[0]])
    assert root["observer.p_wrong"] == decision["p_wrong"]
    assert root["observer.decision"] == "keep"
    assert root["trace.evaluations.0.evaluation.score"] == decision["p_wrong"]
    assert root["input.value"] == "Which river?"
    assert all(received[i].SerializeToString() == sent[i].SerializeToString() for i in span_ids[1:])
    from_json = [s for s in back_end.spans() if s.trace_id.hex() == posted]
    kinds = sorted(str(attributes(s)["openinference.span.kind"]) for s in from_json)
    assert kinds == ["AGENT", "TOOL"]
    agent = next(s for s in from_json if not s.parent_span_id)
    assert attributes(agent)["observer.trace_id"] == posted
    wait_until(lambda: live.get(f"/v1/decisions/{posted}")["exported"])
    assert_balanced(live)


def test_dropped_traces_are_recorded_and_sent_nowhere(service, back_end: BackEnd):
    live = service(policy=DROP_ALL, exporters=[{"name": "x", "endpoint": back_end.endpoint}])
    ids = [new_trace(2) for _ in range(10)]
    live.export(make_request(*ids))
    decisions = live.wait_for_decisions(10)
    assert {(d["decision"], d["reason"], d["keep_probability"]) for d in decisions} == {
        ("drop", "below_threshold", 0.0)
    }
    assert back_end.requests == []
    assert_balanced(live)


@pytest.mark.parametrize(("policy", "forwarded"), [(KEEP_ALL, 4), (DROP_ALL, 0)])
def test_late_spans_follow_the_recorded_decision(service, back_end: BackEnd, policy: dict, forwarded: int):
    live = service(policy=policy, exporters=[{"name": "x", "endpoint": back_end.endpoint}])
    trace_id, span_ids = new_trace(4)
    whole = make_request((trace_id, span_ids))
    early = ExportTraceServiceRequest()
    early.CopyFrom(whole)
    del early.resource_spans[0].scope_spans[0].spans[3]
    live.export(early)
    live.wait_for_decisions(1)
    live.export(whole)  # one span is new, three are sent again
    wait_until(lambda: live.get(f"/v1/decisions/{trace_id.hex()}")["late_spans"] == 1)
    live.export(whole)
    if forwarded:
        wait_until(lambda: len(back_end.spans()) == forwarded)
    assert live.terminate() == 0
    assert len(back_end.spans()) == forwarded
    live.start()
    (decision,) = live.decisions()
    assert (decision["spans"], decision["late_spans"]) == (3, 1)


def test_the_spool_holds_every_decision_and_every_kept_trace(service):
    live = service(policy={"keep_threshold": 0.5})
    for number in range(5):
        live.post_trace(TRACE | {"trace_id": f"good-{number}"})
        live.post_trace(TRACE | {"trace_id": f"bad-{number}", "final_answer": "I could not find it.", "evidence": []})
    decisions = live.wait_for_decisions(10)
    kept = {d["trace_id"] for d in decisions if d["decision"] == "keep"}
    assert 5 <= len(kept) < 10
    assert live.terminate() == 0
    rows = ds.dataset(live.home / "spool" / "decisions").to_table().to_pylist()
    assert {(r["trace_id"], r["decision"], r["p_wrong"]) for r in rows} == {
        (d["trace_id"], d["decision"], d["p_wrong"]) for d in decisions
    }
    assert len(rows) == 10
    traces = ds.dataset(live.home / "spool" / "traces").to_table().to_pylist()
    assert {r["trace_id"] for r in traces} == kept
    assert list((live.home / "serving" / "wal").glob("*.wal")) == [], "everything settled leaves the log empty"
    logged = live.log_lines("observer.decisions")
    assert {(line["trace_id"], line["decision"]) for line in logged} == {
        (d["trace_id"], d["decision"]) for d in decisions
    }


def test_whatever_an_accepted_trace_holds_it_is_decided_and_stops_nothing(service):
    live: Service = service(policy={"keep_threshold": 0.0}, evaluators={"rewards": {"short": "parsimony"}})
    fields = [
        '"latency_ms": 1e308', '"latency_ms": -1e308', '"latency_ms": 3.6e12', r'"project": "\ud800"',
        r'"service": "\ud800"', r'"later": {"\ud800": "\ud800"}', f'"later": {10**30}', '"later": 1e999',
        f'"tool_calls": [{{"name": "t", "args": {{"n": {10**30}}}}}]',
        r'"tool_calls": [{"name": "t", "args": "\ud800", "status": "\ud800"}]',
        f'"tool_calls": [{{"name": "t", "args": {"[" * 90}{"]" * 90}}}]',
    ]  # fmt: skip
    ids = set()
    for field in fields:
        body = f'{{"question": "q", "final_answer": "a", {field}}}'
        answer = httpx.post(
            live.api + "/v1/traces", content=body, headers={"content-type": "application/json"}, timeout=60
        )
        assert answer.status_code == 202, answer.text
        ids.add(answer.json()["trace_id"])
    decided = {d["trace_id"]: d for d in live.wait_for_decisions(len(fields))}
    assert decided.keys() == ids
    assert all(d["evaluators"]["short"] is not None for d in decided.values())
    assert live.metrics()["observer_faults_total"] == 0
    assert live.terminate() == 0
    kept = ds.dataset(live.home / "spool" / "traces").to_table().to_pylist()
    assert {row["trace_id"] for row in kept} == ids


def test_json_api(shared_service: Service):
    url = shared_service.api + "/v1/traces:score"
    tried = httpx.post(url, params={"dry_run": True}, json=TRACE, timeout=30).json()
    assert tried["decision"] == "keep"
    assert httpx.get(f"{shared_service.api}/v1/decisions/{tried['trace_id']}").status_code == 404
    scored = httpx.post(url, json=TRACE, timeout=30).json()
    assert shared_service.get(f"/v1/decisions/{scored['trace_id']}") | {"exported": False} == scored
    again = httpx.post(url, json=TRACE | {"trace_id": scored["trace_id"]}, timeout=30).json()
    assert again["decided_at"] == scored["decided_at"], "one trace, one decision"
    trace_id = shared_service.post_trace(TRACE | {"trace_id": "a name of mine", "project": "shop"})
    assert shared_service.post_trace(TRACE | {"trace_id": "a name of mine"}) == trace_id
    wait_until(lambda: httpx.get(f"{shared_service.api}/v1/decisions/{trace_id}").status_code == 200)
    found = shared_service.get("/v1/decisions/a name of mine")
    assert found["p_wrong"] == scored["p_wrong"]
    page = shared_service.get("/v1/decisions", project="shop")
    assert [d["trace_id"] for d in page["decisions"]] == [trace_id]
    assert shared_service.get("/v1/decisions", decision="drop")["decisions"] == []
    first = shared_service.get("/v1/decisions", limit=1)
    assert first["next_cursor"] is not None or len(shared_service.decisions()) == 1
    for path in ("/", "/docs", "/openapi.json", "/metrics", "/v1/stats", "/v1/model", "/v1/policy"):
        answer = httpx.get(shared_service.api + path)
        assert answer.status_code == 200
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "") or path == "/metrics"


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "says"),
    [
        ("POST", "/v1/traces", b"{", 400, "JSON"),
        ("POST", "/v1/traces", b'{"question": "q"}', 400, "final_answer"),
        ("POST", "/v1/traces", b'{"question": "q", "final_answer": 5}', 400, "final_answer"),
        ("POST", "/v1/traces:score", b'{"question": "q", "final_answer": "a", "evidence": [1]}', 400, "evidence"),
        ("GET", "/v1/decisions?limit=0", b"", 400, "limit"),
        ("GET", "/v1/decisions?cursor=x", b"", 400, "cursor"),
        ("GET", "/v1/decisions?cursor=99999999999999999999", b"", 400, "cursor"),
        ("GET", "/v1/decisions?cursor=%C2%B2", b"", 400, "cursor"),
        ("GET", "/v1/decisions?proyect=x", b"", 400, "proyect"),
        ("GET", "/v1/decisions?since=yesterday", b"", 400, "since"),
        ("GET", "/v1/decisions/" + "0" * 32, b"", 404, "no decision"),
        ("GET", "/nothing", b"", 404, "Not Found"),
        ("DELETE", "/v1/policy", b"", 405, "Method"),
        ("PUT", "/v1/policy", b'{"keep_treshold": 1}', 400, "policy.keep_treshold"),
        ("PUT", "/v1/policy", b'{"random_share": 2}', 400, "policy.random_share"),
        ("PUT", "/v1/policy", b'{"hash_key": "x"}', 400, "hash_key"),
        ("POST", "/v1/model", b'{"run": "/nowhere"}', 400, "no run directory"),
        ("POST", "/v1/model", b'{"kind": "builtin", "run": "/nowhere"}', 400, "run"),
        ("POST", "/v1/model:rollback", b"", 400, "roll back"),
    ],
)
def test_every_error_of_the_api_is_one_line(
    shared_service: Service, method: str, path: str, body: bytes, code: int, says: str
):
    answer = httpx.request(
        method, shared_service.api + path, content=body, headers={"content-type": "application/json"}, timeout=30
    )
    assert answer.status_code == code
    assert set(answer.json()) == {"error"}
    assert says in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_policy_put_while_running_decides_and_survives_a_restart(service):
    live = service(policy=KEEP_ALL)
    first = live.post_trace(TRACE)
    live.wait_for_decisions(1)
    before = live.get("/v1/policy")
    after = httpx.put(live.api + "/v1/policy", json=DROP_ALL).json()
    assert after["policy_version"] != before["policy_version"]
    second = live.post_trace(TRACE)
    live.wait_for_decisions(2)
    assert live.get(f"/v1/decisions/{first}")["decision"] == "keep"
    dropped = live.get(f"/v1/decisions/{second}")
    assert (dropped["decision"], dropped["policy_version"]) == ("drop", after["policy_version"])
    live.kill()
    live.start()
    assert live.get("/v1/policy") == after
    live.terminate()
    live.config.write_text(live.config.read_text().replace("keep_threshold: 0.0", "keep_threshold: 0.25"))
    live.start()
    assert live.get("/v1/policy")["threshold"] == 0.25, "a changed observer.yaml speaks again"


def test_sigterm_decides_what_is_open(service):
    live = service(policy=KEEP_ALL, assembly={"quiet_period": "60s", "timeout": "120s"})
    ids = [new_trace(2) for _ in range(50)]
    live.export(make_request(*ids))
    assert live.terminate() == 0
    live.start()
    assert {(d["trace_id"], d["complete_reason"]) for d in live.decisions()} == {(i.hex(), "shutdown") for i, _ in ids}


def test_open_traces_go_on_after_a_kill(service):
    live = service(policy=KEEP_ALL, assembly={"quiet_period": "1s", "timeout": "60s"})
    trace_id, span_ids = new_trace(4)
    whole = make_request((trace_id, span_ids))
    first, second = ExportTraceServiceRequest(), ExportTraceServiceRequest()
    first.CopyFrom(whole)
    second.CopyFrom(whole)
    del first.resource_spans[0].scope_spans[0].spans[:2]  # children only
    del second.resource_spans[0].scope_spans[0].spans[2:]
    live.export(first)
    live.kill()
    live.start()
    assert live.get("/v1/stats")["open_traces"] == 1
    live.export(second)
    (decision,) = live.wait_for_decisions(1)
    assert (decision["spans"], decision["complete_reason"]) == (4, "root_ended")


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ("listen: {api: '127.0.0.1:PORT'}", 2, "listen.api"),
        ("listen: {otlp_grpc: '127.0.0.1:PORT', api: null, otlp_http: null}", 2, "listen.otlp_grpc"),
        ("listen: {api: '0.0.0.0:0'}", 2, "api_key"),
        (
            "scorer: {kind: local, run: /nowhere}\nlisten: {api: '127.0.0.1:0', otlp_http: null, otlp_grpc: null}",
            2,
            "/nowhere",
        ),
        ("assembly: {quiet_period: soon}", 2, "assembly.quiet_period"),
        ("colour: blue", 2, "colour"),
        (
            "buffer: {dir: /dev/null/wal}\nlisten: {api: '127.0.0.1:0', otlp_http: null, otlp_grpc: null}",
            2,
            "buffer.dir",
        ),
    ],
)
def test_what_is_wrong_at_start_is_one_line(tmp_path: Path, settings: str, code: int, says: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = tmp_path / "observer.yaml"
        config.write_text(settings.replace("PORT", str(taken.getsockname()[1])))
        done = _serve(tmp_path / "home", "--config", config)
    assert done.returncode == code
    assert done.stderr.startswith("observer: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_in_use_or_unwritable_is_one_line(service, tmp_path: Path):
    live = service()
    done = _serve(live.home, "--config", live.config)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another service uses" in done.stderr
    (tmp_path / "file").write_text("")
    done = _serve(tmp_path / "file" / "home")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "OBSERVER_HOME" in done.stderr


def _serve(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from observer_pipeline.cli import main; main()", "serve", *map(str, arguments)],
        env=os.environ | {"OBSERVER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )
