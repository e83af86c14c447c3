"""The gRPC exporter against a real gRPC server that misbehaves as told; large traces cut; Phoenix read back."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from export_items import make_item
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from otlp_collector import Collector

from observer_core.errors import InputError
from observer_serving.export import ExportOptions, ExportOutcome, otlp_http
from observer_serving.export.otlp_grpc import OtlpGrpcExporter
from observer_serving.export.otlp_http import OtlpHttpExporter
from observer_serving.export.queue import dead_letters, replay
from observer_serving.export.split import split_request

FAST = ExportOptions(timeout_s=5, retry_first_s=0.005, retry_max_s=0.02)
Judge = Callable[[list[str]], tuple[grpc.StatusCode, float | None] | None]


class GrpcBackEnd(TraceServiceServicer):
    """Takes what `judge` has nothing against; the 4 MiB limit is gRPC's own default."""

    def __init__(self) -> None:
        self.judge: Judge = lambda _: None
        self.accepted: list[str] = []
        self.calls: list[list[str]] = []
        self.metadata: dict[str, str] = {}
        self.server = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(self, self.server)
        self.endpoint = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext):
        names = [s.name for g in request.resource_spans for scope in g.scope_spans for s in scope.spans]
        self.calls.append(names)
        self.metadata = {key: str(value) for key, value in context.invocation_metadata()}
        verdict = self.judge(names)
        if verdict is not None:
            code, wait = verdict
            status = Status(code=code.value[0], message="not now")
            if wait is not None:
                nanos = int(wait * 1e9)
                status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)))
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(code, "not now")
        self.accepted += names
        return ExportTraceServiceResponse()


@pytest.fixture
def back() -> Iterator[GrpcBackEnd]:
    server = GrpcBackEnd()
    yield server
    server.server.stop(None)


def export(back: GrpcBackEnd, folder: Path, *items, options: ExportOptions = FAST) -> list[ExportOutcome]:
    outcomes: list[ExportOutcome] = []
    exporter = OtlpGrpcExporter(
        "back", back.endpoint, folder / "export" / "back", headers={"Authorization": "Bearer k"}, options=options,
        on_outcome=outcomes.append,
    )  # fmt: skip
    for item in items:
        exporter.submit(item)
    exporter.start()
    exporter.stop(10)
    assert exporter.stats().queued_items == 0, exporter.stats()
    return outcomes


def script(*verdicts: tuple[grpc.StatusCode, float | None]) -> Judge:
    rest = list(verdicts)
    return lambda _: rest.pop(0) if rest else None


def test_traces_arrive_once_in_order_with_the_key(back: GrpcBackEnd, tmp_path: Path):
    outcomes = export(back, tmp_path, make_item("a", spans=2), make_item("b"), make_item("b", late=True))
    assert back.accepted == ["a", "a", "b", "b"]
    assert back.metadata["authorization"] == "Bearer k"
    assert [(o.outcome, o.spans) for o in outcomes] == [("exported", 2), ("exported", 1), ("late_spans", 1)]


@pytest.mark.parametrize(
    "verdicts",
    [
        [(grpc.StatusCode.UNAVAILABLE, None), (grpc.StatusCode.UNAVAILABLE, 0.01), (grpc.StatusCode.ABORTED, None)],
        [(grpc.StatusCode.RESOURCE_EXHAUSTED, 0.01), (grpc.StatusCode.UNAUTHENTICATED, None)],
        [(grpc.StatusCode.INTERNAL, None), (grpc.StatusCode.UNKNOWN, None)],
    ],
)
def test_what_passes_is_waited_for(back: GrpcBackEnd, tmp_path: Path, verdicts: list):
    back.judge = script(*verdicts)
    assert [o.outcome for o in export(back, tmp_path, make_item("a"), make_item("b"))] == ["exported"] * 2
    assert back.calls == [["a", "b"]] * (len(verdicts) + 1)


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_the_one_trace_it_refuses_becomes_a_dead_letter_and_can_be_replayed(
    back: GrpcBackEnd, tmp_path: Path, code: grpc.StatusCode
):
    back.judge = lambda names: (code, None) if "c" in names else None
    outcomes = export(back, tmp_path, *map(make_item, "abcdefg"))
    assert sorted(back.accepted) == list("abdefg")
    assert [o.outcome for o in outcomes].count("dead_letter") == 1
    (letter,) = dead_letters(tmp_path)
    assert letter.status == code.value[0]
    assert "not now" in letter.response
    back.judge = lambda _: None
    replay(letter)
    assert [o.outcome for o in export(back, tmp_path)] == ["exported"]


def test_batches_and_single_traces_stay_below_four_mebibytes(back: GrpcBackEnd, tmp_path: Path):
    options = ExportOptions(retry_first_s=0.005, retry_max_s=0.02, max_batch_spans=100_000)
    big = make_item("big", spans=9, padding=1 << 20)  # 9 MiB in one trace
    outcomes = export(back, tmp_path, big, *[make_item(f"m{i}", padding=1 << 20) for i in range(6)], options=options)
    assert [o.outcome for o in outcomes] == ["exported"] * 7
    assert len(back.accepted) == 15
    assert max(len(names) for names in back.calls) == 3


def test_a_back_end_that_is_down_loses_nothing(tmp_path: Path):
    server = GrpcBackEnd()
    server.server.stop(None).wait()
    exporter = OtlpGrpcExporter("back", server.endpoint, tmp_path / "q", options=FAST)
    exporter.submit(make_item("a"))
    exporter.start()
    exporter.stop(0.3)
    stats = exporter.stats()
    assert (stats.queued_items, stats.dead_lettered) == (1, 0)
    assert "UNAVAILABLE" in stats.last_error
    assert OtlpGrpcExporter("other", server.endpoint, tmp_path / "p", options=FAST).probe() is not None


def test_an_endpoint_that_is_none_is_refused(tmp_path: Path):
    for endpoint in ("nowhere", "ftp://x:1", "http://x"):
        with pytest.raises(InputError, match="host:port"):
            OtlpGrpcExporter("x", endpoint, tmp_path / endpoint.replace("/", ""))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3000)), min_size=1, max_size=6), st.integers(600, 6000))
@hypothesis_settings(max_examples=60, deadline=None)
def test_a_cut_keeps_every_span_and_the_limit(traces: list[tuple[int, int]], limit: int):
    groups = [g for i, (n, pad) in enumerate(traces) for g in make_item(f"t{i}", spans=n, padding=pad).resource_spans]
    whole = ExportTraceServiceRequest(resource_spans=groups)
    parts = [ExportTraceServiceRequest.FromString(p) for p in split_request(whole.SerializeToString(), limit)]

    def spans(request: ExportTraceServiceRequest) -> list[bytes]:
        return [s.SerializeToString() for g in request.resource_spans for scope in g.scope_spans for s in scope.spans]

    assert [s for part in parts for s in spans(part)] == spans(whole)
    assert all(part.ByteSize() <= limit or len(spans(part)) == 1 for part in parts)


def test_read_back_counts_a_trace_once_phoenix_shows_it_and_sends_again_what_never_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(otlp_http, "_CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(otlp_http, "_CHECK_FOR_S", 0.3)
    outcomes: list[ExportOutcome] = []
    told = threading.Event()
    with Collector(phoenix=True) as back:
        back.show = lambda spans: spans if len(back.requests) > 1 else []  # the first time it loses what it accepted
        exporter = OtlpHttpExporter(
            "phoenix", back.endpoint, tmp_path / "q", project="a/b", read_back=True, options=FAST,
            on_outcome=lambda outcome: (outcomes.append(outcome), told.set()),
        )  # fmt: skip
        exporter.submit(make_item("a", spans=2))
        exporter.start()
        assert told.wait(20)
        back.wait_for(lambda: len(back.annotations) == 1)
        exporter.stop(5)
    assert len(back.requests) == 2
    assert set(back.looked_up) == {"/v1/projects/a%2Fb/spans"}
    assert [o.outcome for o in outcomes] == ["exported"]
    assert exporter.stats().read_back == 1
