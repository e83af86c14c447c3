"""What nothing else would notice if it went: the sync before an answer, bounds on what waits, draining, a count."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from serving.harness import Service, make_request, new_trace, wait_until

TRACE = {"question": "q", "final_answer": "a"}
HOLD = """
import pathlib, time
import {module} as module
owner = {owner}
real = owner.{name}
def held(*given):
    pathlib.Path({gate!r} + ".reached").touch()
    while not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)
    return real(*given)
owner.{name} = held
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Callable[..., tuple[Service, Path]]]:
    """Start a service in which a function waits for a file, here called its gate."""
    started: list[Service] = []

    def start(module: str, owner: str, name: str, **settings: object) -> tuple[Service, Path]:
        gate = tmp_path / "gate"
        live = Service(tmp_path / "home", settings)
        live.prelude = HOLD.format(module=module, owner=owner, name=name, gate=str(gate))
        started.append(live.start())
        return live, gate

    yield start
    for one in started:
        if one.process is not None and one.process.poll() is None:
            one.kill()


def export_over_grpc(live: Service, request: ExportTraceServiceRequest) -> grpc.RpcError | None:
    with grpc.insecure_channel(live.otlp_grpc) as channel:
        try:
            TraceServiceStub(channel).Export(request, timeout=20)
        except grpc.RpcError as error:
            return error
    return None


def assert_unavailable(error: grpc.RpcError | None) -> None:
    assert isinstance(error, grpc.Call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    given: Any = error.trailing_metadata()
    details = Status.FromString(dict(given)["grpc-status-details-bin"]).details
    assert RetryInfo.FromString(details[0].value).retry_delay.seconds >= 1


def reached(gate: Path) -> bool:
    return gate.with_name(gate.name + ".reached").exists()


def test_what_waits_for_the_disk_is_bounded(held):
    live, gate = held("observer_serving.buffer.wal", "module", "_sync", receive={"max_waiting": "1B"})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(live.export, make_request(new_trace()))
        wait_until(lambda: reached(gate))
        second: Future[httpx.Response] = pool.submit(
            httpx.post, live.api + "/v1/traces", json=TRACE, timeout=60
        )  # waits for the first's sync, and more than one byte
        wait_until(lambda: live.client.get(live.api + "/readyz").status_code == 503)
        assert "disk" in live.client.get(live.api + "/readyz").json()["problems"]["receiver"]
        for answer in (live.export(make_request(new_trace())), live.client.post(live.api + "/v1/traces", json=TRACE)):
            assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
            assert b"too much is waiting for the disk" in answer.content
        assert_unavailable(export_over_grpc(live, make_request(new_trace())))
        assert [one.done() for one in (first, second)] == [False, False]
        gate.touch()
        assert (first.result().status_code, second.result().status_code) == (200, 202)
    assert len(live.wait_for_decisions(2)) == 2, "and nothing of what was refused"
    assert live.export(make_request(new_trace())).status_code == 200


def test_while_draining_every_door_says_come_back(held):
    live, gate = held("observer_serving.engine", "module.Engine", "drain", drain="30s")
    assert live.process is not None
    live.process.terminate()
    wait_until(lambda: reached(gate))
    ready = live.client.get(live.api + "/readyz")
    assert (ready.status_code, ready.json()["problems"]) == (503, {"receiver": "shutting down"})
    empty = ExportTraceServiceRequest()  # nothing for the log, which refuses by itself
    for request in (empty, make_request(new_trace())):
        answer = live.export(request)
        assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
        assert_unavailable(export_over_grpc(live, request))
    for path in ("/v1/traces", "/v1/traces:score"):
        answer = live.client.post(live.api + path, json=TRACE)
        assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
    gate.touch()
    assert live.process.wait(timeout=60) == 0


def test_a_trace_without_an_answer_is_scored_and_counted(service):
    live: Service = service(policy={"keep_threshold": 0.0})
    silent, answering = make_request(new_trace()), make_request(new_trace())
    root = silent.resource_spans[0].scope_spans[0].spans[0]
    (place,) = [i for i, attribute in enumerate(root.attributes) if attribute.key == "output.value"]
    del root.attributes[place]
    for request in (silent, answering):
        live.export(request)
    rows = {row["trace_id"]: row for row in live.wait_for_decisions(2)}
    assert rows[root.trace_id.hex()]["p_wrong"] is not None
    assert live.metrics()["observer_traces_without_answer_total"] == 1
