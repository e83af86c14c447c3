"""Clients of other languages and frameworks: the OpenTelemetry JS SDK, OpenInference's instrumentations, the ADK test
agent, `curl`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from serving.harness import BackEnd, Service, attributes, wait_until

from observer_core.traces.normalise import normalise
from observer_core.traces.otlp import read_otlp_file, write_otlp_file

JS = Path(__file__).parents[1] / "js"
FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"
NEEDS_NODE = pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="node and npm are not here")


def node_project() -> Path:
    """The JS client with its packages, installed once per machine and anew when `package.json` changes."""
    cache = Path(os.environ.get("OBSERVER_TEST_CACHE") or Path.home() / ".cache" / "observer-tests")
    project = cache / "js"
    wanted = (JS / "package.json").read_text()
    installed = project / "installed.json"
    if not installed.exists() or installed.read_text() != wanted:
        project.mkdir(parents=True, exist_ok=True)
        (project / "package.json").write_text(wanted)
        install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--silent"]
        subprocess.run(install, cwd=project, check=True, timeout=300)
        installed.write_text(wanted)
    shutil.copy(JS / "send.mjs", project)
    return project


@pytest.mark.heavy
@NEEDS_NODE
@pytest.mark.parametrize("transport", ["json", "protobuf", "grpc"])
def test_opentelemetry_js_sdk(service: Callable[..., Service], transport: str):
    with BackEnd() as back_end:
        live = service(policy={"keep_threshold": 0.0}, exporters=[{"name": "x", "endpoint": back_end.endpoint}])
        url = f"http://{live.otlp_grpc}" if transport == "grpc" else live.otlp_http + "/v1/traces"
        sent = subprocess.run(
            ["node", "send.mjs", transport, url, "25"], cwd=node_project(), capture_output=True, text=True, timeout=60
        )
        assert (sent.returncode, sent.stderr) == (0, "")
        ids = set(sent.stdout.split())
        assert len(ids) == 25
        decisions = live.wait_for_decisions(25)
        assert {d["trace_id"] for d in decisions} == ids
        assert {(d["spans"], d["project"], d["complete_reason"]) for d in decisions} == {
            (2, f"js-{transport}", "root_ended")
        }
        wait_until(lambda: len(back_end.spans()) == 50)
        roots = [span for span in back_end.spans() if not span.parent_span_id]
        tools = {span.trace_id: span for span in back_end.spans() if span.parent_span_id}
        for root in roots:
            given = attributes(root)
            assert given["input.value"] == "Which river? Ünïcödé 🌊"
            assert (given["steps"], given["share"]) == (2, 0.5)
            assert root.kind == 2
            assert root.end_time_unix_nano > 1_600_000_000_000_000_000
            tool = tools[root.trace_id]
            assert (tool.parent_span_id, tool.links[0].span_id) == (root.span_id, root.span_id)
            assert (tool.status.code, tool.status.message) == (2, "timed out")
            titles = tool.events[0].attributes[0].value.array_value.values
            assert [value.string_value for value in titles] == ["Rhine", "Elbe"]


@pytest.mark.parametrize("name", ["openai_agent", "openai_streaming", "openai_calls_only", "langgraph"])
def test_openinference_recordings_through_the_service(shared_service: Service, name: str):
    (request,) = read_otlp_file(FIXTURES / f"{name}.json")
    spans = [s for rs in request.resource_spans for ss in rs.scope_spans for s in ss.spans]
    assert shared_service.export(request).status_code == 200
    url = f"{shared_service.api}/v1/decisions/{spans[0].trace_id.hex()}"
    wait_until(lambda: httpx.get(url).status_code == 200)
    decided = httpx.get(url).json()
    assert (decided["spans"], decided["project"], decided["complete_reason"]) == (len(spans), "rivers", "root_ended")
    assert 0 < decided["p_wrong"] < 1


def test_the_adk_test_agent(service: Callable[..., Service]):
    from observer_pipeline.agent.chat import sample_questions  # which imports ADK

    question = sample_questions(None)[0].question
    with BackEnd() as back_end:
        live = service(policy={"keep_threshold": 0.0}, exporters=[{"name": "x", "endpoint": back_end.endpoint}])
        agent = [sys.executable, "-m", "observer_pipeline.cli", "agent", "run", question, "--json"]
        done = subprocess.run([*agent, "--endpoint", live.otlp_http], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        (decided,) = live.wait_for_decisions(1)
        assert (decided["trace_id"], decided["complete_reason"]) == (told["trace_id"], "root_ended")
        assert 0 < decided["p_wrong"] < 1
        wait_until(lambda: len(back_end.spans()) == decided["spans"])
        read = normalise([spans for request in back_end.requests for spans in request.resource_spans]).trace
        assert (read.question, read.final_answer) == (question, told["final_answer"])
        assert [(call.name, call.args) for call in read.tool_calls] == [
            (call["name"], call["args"]) for call in told["tool_calls"]
        ]
        assert read.tool_calls


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
@pytest.mark.parametrize("suffix", ["json", "pb"])
def test_curl(shared_service: Service, tmp_path: Path, suffix: str):
    trace_id = os.urandom(16)
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=trace_id, span_id=b"s" * 8, name="run", start_time_unix_nano=1, end_time_unix_nano=2)
    )
    span.attributes.add(key="input.value").value.string_value = "Which river?"
    file = tmp_path / f"spans.{suffix}"
    if suffix == "json":
        write_otlp_file(file, [request])
    else:
        file.write_bytes(request.SerializeToString())
    content_type = "application/json" if suffix == "json" else "application/x-protobuf"
    sent = subprocess.run(
        ["curl", "-sS", "-w", "%{http_code}", "-o", str(tmp_path / "answer"), "-H", f"content-type: {content_type}",
         "--data-binary", f"@{file}", shared_service.otlp_http + "/v1/traces"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (sent.stdout, sent.stderr) == ("200", "")
    assert (tmp_path / "answer").read_bytes() == (b"{}" if suffix == "json" else b"")
    wait_until(lambda: httpx.get(f"{shared_service.api}/v1/decisions/{trace_id.hex()}").status_code == 200)
