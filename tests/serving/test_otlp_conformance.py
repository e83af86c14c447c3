"""The promises of the OTLP specification, C1 to C24 of the project's list, against a real service."""

import asyncio
import gzip
import json
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import psutil
import pytest
import zstandard
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from serving.harness import BackEnd, Service, make_request, new_trace, wait_until

from observer_core.traces.otlp import protobuf_from_json, resources_from_json
from observer_core.traces.otlp_json import dump_json_message
from observer_serving.access import Keys
from observer_serving.candidate import parse_spans
from observer_serving.config import Settings
from observer_serving.listen import HttpListener, bind
from observer_serving.receive import status
from observer_serving.receive.grpc import SERVICE
from observer_serving.receive.http import OtlpHttp
from observer_serving.receive.protocol import MAX_HEAD_BYTES, OtlpProtocol
from observer_serving.receive.status import OVERLOADED, RefusedError
from observer_serving.receive.wire import cut, cut_resources

PROTOBUF, JSON = "application/x-protobuf", "application/json"
ENCODERS = {
    "none": lambda body: body,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": lambda body: zstandard.ZstdCompressor().compress(body),
}
STREAMED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
"""As encoders of streams write it: nothing in it says how long the content is."""


def post(service: Service, body: bytes, content_type: str | None = PROTOBUF, **headers: str) -> httpx.Response:
    given = {"content-type": content_type} if content_type else {}
    return httpx.post(service.otlp_http + "/v1/traces", content=body, headers=given | headers, timeout=30)


def status_of(answer: httpx.Response) -> Status:
    """The `google.rpc.Status` of a refusal, whichever encoding it has."""
    if answer.headers["content-type"] == PROTOBUF:
        return Status.FromString(answer.content)
    assert answer.headers["content-type"] == JSON
    body = answer.json()
    return Status(code=body["code"], message=body["message"])


def decision(service: Service, trace_id: bytes) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        answer = httpx.get(f"{service.api}/v1/decisions/{trace_id.hex()}", timeout=30)
        if answer.status_code == 200:
            found.append(answer.json())
        return bool(found)

    wait_until(is_there)
    return found[0]


def one(spans: int = 3) -> tuple[bytes, ExportTraceServiceRequest]:
    trace_id, span_ids = new_trace(spans)
    return trace_id, make_request((trace_id, span_ids))


def raw(service: Service, request: bytes) -> tuple[int, str, bytes]:
    """What a request that no HTTP library sends is answered: status code, content type, body."""
    host, _, port = service.otlp_http.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        answer = b""
        while received := connection.recv(65536):
            answer += received
    head, _, body = answer.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
    return int(head.split()[1]), headers["content-type"], body


def stub(service: Service) -> TraceServiceStub:
    return TraceServiceStub(grpc.insecure_channel(service.otlp_grpc))


@pytest.mark.parametrize("compression", ENCODERS)
@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_C1_C16_compressions_and_encodings_over_http(shared_service: Service, compression: str, content_type: str):
    trace_id, request = one()
    body = request.SerializeToString() if content_type == PROTOBUF else dump_json_message(request)
    headers = {} if compression == "none" else {"content-encoding": compression}
    answer = post(shared_service, ENCODERS[compression](body), content_type, **headers)
    assert answer.status_code == 200, answer.text
    assert decision(shared_service, trace_id)["spans"] == 3


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_C1_compressions_over_grpc(shared_service: Service, compression: grpc.Compression):
    trace_id, request = one()
    assert stub(shared_service).Export(request, compression=compression) == ExportTraceServiceResponse()
    assert decision(shared_service, trace_id)["spans"] == 3


def test_C1_the_trace_is_the_same_whichever_way_it_came(service):
    """Both transports, both encodings, every compression: byte for byte the same spans leave."""
    with BackEnd() as back_end:
        live = service(policy={"keep_threshold": 0.0}, exporters=[{"name": "x", "endpoint": back_end.endpoint}])
        template = make_request(new_trace(3))
        first, second, _ = template.resource_spans[0].scope_spans[0].spans
        first.links.add(trace_id=b"\xab" * 16, span_id=b"\xcd" * 8, trace_state="a=b")
        second.events.add(name="exception", time_unix_nano=1 << 62).attributes.add(key="n").value.int_value = -(1 << 63)
        second.attributes.add(key="mixed").value.array_value.values.add().bytes_value = b"\xff\x00"

        def another() -> ExportTraceServiceRequest:
            request = ExportTraceServiceRequest.FromString(template.SerializeToString())
            trace_id = secrets.token_bytes(16)
            for span in request.resource_spans[0].scope_spans[0].spans:
                span.trace_id = trace_id
            return request

        for name, encode in ENCODERS.items():
            headers = {} if name == "none" else {"content-encoding": name}
            assert post(live, encode(another().SerializeToString()), PROTOBUF, **headers).status_code == 200
            assert post(live, encode(dump_json_message(another())), JSON, **headers).status_code == 200
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            stub(live).Export(another(), compression=compression)
        wait_until(lambda: len(back_end.spans()) == 30)
        seen: dict[bytes, set[bytes]] = {}
        for span in back_end.spans():
            span.trace_id = bytes(16)
            for i in reversed(range(len(span.attributes))):
                if span.attributes[i].key.startswith(("observer.", "trace.evaluations.")):
                    del span.attributes[i]
            seen.setdefault(span.span_id, set()).add(span.SerializeToString())
        for span in template.resource_spans[0].scope_spans[0].spans:
            span.trace_id = bytes(16)
            assert seen[span.span_id] == {span.SerializeToString()}


@pytest.mark.parametrize("compression", ["gzip", "deflate", "zstd"])
def test_C2_a_bomb_is_refused_without_being_unpacked(shared_service: Service, compression: str):
    assert shared_service.process is not None
    process = psutil.Process(shared_service.process.pid)
    bomb = ENCODERS[compression](bytes(300 << 20))
    before = process.memory_info().rss
    answer = post(shared_service, bomb, **{"content-encoding": compression})
    assert answer.status_code == 413
    assert status_of(answer).code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert process.memory_info().rss - before < 200 << 20


def test_C2_a_large_grpc_message_is_refused_without_a_retry_hint(shared_service: Service):
    request = make_request(new_trace(1))
    request.resource_spans[0].scope_spans[0].spans[0].name = "x" * (65 << 20)
    with pytest.raises(grpc.RpcError) as refused:
        stub(shared_service).Export(request, compression=grpc.Compression.Gzip)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "grpc-status-details-bin" not in dict(refused.value.trailing_metadata() or ())


def test_C2_a_chunked_body_is_cut_off_at_the_limit(service):
    small = service(receive={"max_request": "100KB"})

    def chunks():
        for _ in range(50):
            yield bytes(10_000)

    answer = httpx.post(
        small.otlp_http + "/v1/traces", content=chunks(), headers={"content-type": PROTOBUF}, timeout=30
    )
    assert answer.status_code == 413


def _request(resources: int, scopes: int, spans: int) -> ExportTraceServiceRequest:
    """So many of each under each."""
    request = ExportTraceServiceRequest()
    for _ in range(resources):
        resource_spans = request.resource_spans.add()
        for _ in range(scopes):
            scope_spans = resource_spans.scope_spans.add()
            for _ in range(spans):
                scope_spans.spans.add(trace_id=secrets.token_bytes(16), span_id=secrets.token_bytes(8), name="n" * 50)
    return request


def test_C2_a_request_of_very_many_spans_is_refused_before_it_takes_hundreds_of_times_its_size(service):
    """Also when the limit is met by resources or scopes; those that just fit are taken, and one gRPC call is as good."""
    few = service(receive={"max_request_spans": 100})
    for shape, wanted in (
        ((1, 1, 98), 200),
        ((1, 1, 99), 413),
        ((4, 4, 5), 200),
        ((4, 4, 6), 413),
        ((101, 0, 0), 413),
        ((1, 100, 0), 413),
        ((10, 9, 0), 200),
        ((10, 10, 0), 413),
    ):
        request = _request(*shape)
        for content_type, body in ((PROTOBUF, request.SerializeToString()), (JSON, dump_json_message(request))):
            answer = post(few, body, content_type)
            assert answer.status_code == wanted, (shape, content_type)
            if wanted == 413:
                assert "receive.max_request_spans" in status_of(answer).message
    with pytest.raises(grpc.RpcError) as caught:
        stub(few).Export(_request(1, 1, 99))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("odd", [b"\x0b\x0c", b"\xff" * 11, b"\x0a\xff\xff\xff\xff\x0f"])
def test_C2_what_cannot_be_counted_is_no_way_around_the_limit(service, odd: bytes):
    few = service(receive={"max_request_spans": 100})
    answer = post(few, odd + _request(1, 1, 200).SerializeToString())
    assert answer.status_code == 400


def test_C3_a_hundred_thousand_bad_spans_get_a_short_answer(shared_service: Service):
    request = make_request(new_trace(1))
    spans = request.resource_spans[0].scope_spans[0].spans
    for number in range(100_000):
        spans.add(trace_id=secrets.token_bytes(number % 15), span_id=b"x" * 8)
    answer = post(shared_service, request.SerializeToString())
    assert answer.status_code == 200
    assert len(answer.content) < 4 << 20
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 100_000


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", PROTOBUF),
        (b"{}", JSON),
        (b'{"resourceSpans": []}', JSON),
        (b'{"resourceSpans": [{"scopeSpans": []}]}', JSON),
        (b"\x0a\x00", PROTOBUF),
        (b"\x0a\x02\x12\x00", PROTOBUF),
    ],
)
def test_C4_C5_C8_empty_requests_succeed(shared_service: Service, body: bytes, content_type: str):
    answer = post(shared_service, body, content_type)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == content_type
    assert answer.content == (b"{}" if content_type == JSON else b"")


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_C5_C8_full_success_leaves_partial_success_unset(shared_service: Service, content_type: str):
    _, request = one()
    body = request.SerializeToString() if content_type == PROTOBUF else dump_json_message(request)
    answer = post(shared_service, body, content_type)
    assert answer.headers["content-type"] == content_type
    assert answer.content == (b"{}" if content_type == JSON else b"")


def test_C6_partial_success_counts_and_says_why(shared_service: Service):
    trace_id, request = one(3)
    spans = request.resource_spans[0].scope_spans[0].spans
    spans.add(trace_id=bytes(16), span_id=b"x" * 8)
    spans.add(trace_id=trace_id, span_id=b"x" * 7)
    answer = post(shared_service, request.SerializeToString())
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert partial.rejected_spans == 2
    assert "trace_id is all zero" in partial.error_message
    assert "span_id has 7 bytes" in partial.error_message
    as_json = post(shared_service, dump_json_message(request), JSON).json()
    assert as_json["partialSuccess"]["rejectedSpans"] == "2"
    assert stub(shared_service).Export(request).partial_success.rejected_spans == 2
    assert decision(shared_service, trace_id)["spans"] == 3


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_C7_a_warning_has_no_rejected_spans_and_a_message(shared_service: Service, content_type: str):
    trace_id, request = one(3)
    spans = request.resource_spans[0].scope_spans[0].spans
    spans.add().CopyFrom(spans[2])
    body = request.SerializeToString() if content_type == PROTOBUF else dump_json_message(request)
    answer = post(shared_service, body, content_type)
    assert answer.status_code == 200
    if content_type == PROTOBUF:
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        rejected, message = partial.rejected_spans, partial.error_message
    else:
        told = answer.json()["partialSuccess"]
        rejected, message = told["rejectedSpans"], told["errorMessage"]
    assert int(rejected) == 0
    assert message.startswith("1 span(s) have the id of another span")
    assert decision(shared_service, trace_id)["spans"] == 3


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "code"),
    [
        ("POST", "/v1/traces", b"\xff\xff\xff", {}, 400),
        ("POST", "/v1/traces", b"not gzip", {"content-encoding": "gzip"}, 400),
        ("POST", "/v1/traces", gzip.compress(bytes(1000), mtime=0)[:-9], {"content-encoding": "gzip"}, 400),
        ("POST", "/v1/traces", b"not zstd", {"content-encoding": "zstd"}, 400),
        ("POST", "/v1/traces", STREAMED[:-5], {"content-encoding": "zstd"}, 400),
        ("POST", "/v1/traces", ENCODERS["zstd"](b"") + STREAMED[:-5], {"content-encoding": "zstd"}, 400),
        ("POST", "/v1/traces", b"", {"content-encoding": "br"}, 415),
        ("POST", "/v1/metrics", b"", {}, 404),
        ("POST", "/v1/logs", b"", {}, 404),
        ("POST", "/nothing", b"", {}, 404),
        ("GET", "/v1/traces", b"", {}, 405),
        ("PUT", "/v1/traces", b"", {}, 405),
    ],
)
def test_C9_C10_C24_every_refusal_is_a_status_in_the_requests_encoding(
    shared_service: Service, content_type: str, method: str, path: str, body: bytes, headers: dict[str, str], code: int
):
    answer = httpx.request(
        method,
        shared_service.otlp_http + path,
        content=body,
        headers={"content-type": content_type} | headers,
        timeout=30,
    )
    assert answer.status_code == code
    assert answer.headers["content-type"] == content_type
    status = status_of(answer)
    assert status.code != 0
    assert status.message
    if code == 400 and content_type == PROTOBUF:
        assert BadRequest.FromString(status.details[0].value).field_violations[0].description == status.message


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize(
    ("request_line", "more", "code"),
    [
        (b"POST /v1/traces HTTP/1.1", b"broken header line\r\n\r\n", 400),
        (b"POST /v1/traces HTTP/1.1", b"content-length: minus\r\n\r\n", 400),
        (b"POST /\xff HTTP/1.1", b"\r\n", 400),
        (b"POST /v1/traces HTTP/1.1", b"transfer-encoding: chunked\r\n\r\nnot a length\r\n", 400),
        (b"POST /v1/traces HTTP/1.1", b"x: " + b"y" * (MAX_HEAD_BYTES + 1), 431),
        (b"POST /v1/traces HTTP/1.1", b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 1), 431),
        (b"PUT /v1/traces HTTP/1.1", b"connection: close, upgrade\r\nupgrade: websocket\r\n\r\n", 405),
    ],
)
def test_C9_what_the_http_server_refuses_is_a_status_too(
    shared_service: Service, content_type: str, request_line: bytes, more: bytes, code: int
):
    head = request_line + f"\r\ncontent-type: {content_type}\r\nhost: x\r\n".encode()
    status_code, answered_type, body = raw(shared_service, head + more)
    told = Status.FromString(body) if answered_type == PROTOBUF else json.loads(body)
    # A request line that cannot be read comes before the content type.
    assert (status_code, answered_type) == (code, JSON if b"\xff" in request_line else content_type)
    assert (told.message if isinstance(told, Status) else told["message"]).strip()


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_C9_a_fault_of_ours_is_500_with_a_status(content_type: str, when: str):
    class Broken:
        def accept_spans(self, body: bytes, encoding: str) -> asyncio.Future[None]:
            if when == "at once":
                raise RuntimeError("a bug")
            future = asyncio.get_running_loop().create_future()
            future.set_exception(RuntimeError("a bug"))
            return future

    app = OtlpHttp(Broken(), Keys(Settings()), max_request=1000)  # pyright: ignore[reportArgumentType]

    async def ask() -> httpx.Response:
        listener = HttpListener(bind("otlp_http", "127.0.0.1:0"), app, protocol=OtlpProtocol)
        await listener.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client:
            answer = await client.post("/v1/traces", content=b"{}", headers={"content-type": content_type})
        await listener.stop()
        return answer

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.headers["content-type"]) == (500, content_type)
    assert status_of(answer).code == grpc.StatusCode.INTERNAL.value[0]
    assert "a bug" not in answer.text


def test_C2_the_endless_body_of_a_refused_request_is_not_taken_in_for_ever(shared_service: Service):
    host, port = shared_service.otlp_http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")
        deadline = time.monotonic() + 30
        with pytest.raises(OSError, match=r"reset|pipe"):
            while time.monotonic() < deadline:
                connection.sendall(bytes(1000))
                time.sleep(0.05)


def test_C9_413_401_and_503_are_in_the_requests_encoding(service):
    locked = service(api_key="secret", receive={"max_request": "100B"})
    full = service(buffer={"max_bytes": 1}, assembly={"quiet_period": "30s", "timeout": "60s"})
    good = {"authorization": "Bearer secret"}
    _, request = one(1)
    assert post(full, request.SerializeToString()).status_code == 200
    for content_type, body in ((PROTOBUF, request.SerializeToString()), (JSON, dump_json_message(request))):
        answers = [
            post(locked, body, content_type),
            post(locked, body, content_type, **good),
            post(full, body, content_type),
        ]
        assert [answer.status_code for answer in answers] == [401, 413, 503]
        assert [answer.headers["content-type"] for answer in answers] == [content_type] * 3
        assert [status_of(answer).code for answer in answers] == [16, 8, 14]


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml"])
def test_C9_unknown_media_types_are_415(shared_service: Service, content_type: str | None):
    answer = post(shared_service, b"x", content_type)
    assert answer.status_code == 415
    assert "application/x-protobuf" in status_of(answer).message


@pytest.mark.parametrize("body", [b"[]", b"{", b"null", b'"x"', b'{"resourceSpans": 5}', b"\xff", b"[" * 100_000])
def test_C10_bad_json_is_400(shared_service: Service, body: bytes):
    answer = post(shared_service, body, JSON)
    assert answer.status_code == 400
    assert answer.json()["details"][0]["@type"].endswith("google.rpc.BadRequest")


@pytest.mark.parametrize(
    ("content_type", "half"), [(PROTOBUF, b"\xed\xa0\xbd"), (PROTOBUF, b"MA\xc3"), (JSON, rb"\ud83d")]
)
def test_a_text_cut_in_the_middle_of_a_character_costs_no_span(shared_service: Service, content_type: str, half: bytes):
    trace_id, span_ids = new_trace(3)
    request = make_request((trace_id, span_ids), question="cut MARK")
    body = request.SerializeToString() if content_type == PROTOBUF else dump_json_message(request)
    answer = post(shared_service, body.replace(b"MARK", half + b"K" * (4 - len(half))), content_type)
    assert (answer.status_code, answer.content) == (200, b"" if content_type == PROTOBUF else b"{}")
    url = f"{shared_service.api}/v1/decisions/{trace_id.hex()}"
    wait_until(lambda: httpx.get(url).status_code == 200)
    assert httpx.get(url).json()["spans"] == 3


def test_C10_bad_protobuf_over_grpc_is_invalid_argument(shared_service: Service):
    call = grpc.insecure_channel(shared_service.otlp_grpc).unary_unary(
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    )
    with pytest.raises(grpc.RpcError) as refused:
        call(b"\xff\xff\xff")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_C11_C13_overload_is_503_and_unavailable_with_a_delay(service):
    full = service(buffer={"max_bytes": 1}, assembly={"quiet_period": "30s", "timeout": "60s"})
    assert post(full, one()[1].SerializeToString()).status_code == 200
    answer = post(full, one()[1].SerializeToString())
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert status_of(answer).code == grpc.StatusCode.UNAVAILABLE.value[0]
    with pytest.raises(grpc.RpcError) as refused:
        stub(full).Export(one()[1])
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    details = Status.FromString(dict(refused.value.trailing_metadata() or ())["grpc-status-details-bin"])
    assert RetryInfo.FromString(details.details[0].value).retry_delay.seconds == 1
    assert httpx.get(full.api + "/readyz").status_code == 503
    assert httpx.post(full.api + "/v1/traces", json={"question": "q", "final_answer": "a"}).status_code == 503


def test_C11_the_json_form_of_a_delay():
    body = json.loads(RefusedError(OVERLOADED, "full", retry_after=1.5).body("json"))
    assert body["code"] == 14
    assert body["details"] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"}]


def test_C12_C14_only_overload_is_retryable_on_either_transport():
    retryable_http = {429, 502, 503, 504}
    retryable_grpc = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    kinds = {name: kind for name, kind in vars(status).items() if isinstance(kind, status.Kind)}
    assert len(kinds) >= 8
    for name, kind in kinds.items():
        retryable = name == "OVERLOADED"
        assert (kind.http in retryable_http) == retryable, name
        assert (names[kind.grpc] in retryable_grpc) == retryable, name
    assert OVERLOADED.http == 503, "released exporters drop a batch on 429"


def test_C15_json_ids_numbers_and_unknown_fields(shared_service: Service):
    trace_id, span_id, link = secrets.token_bytes(16), secrets.token_bytes(8), secrets.token_bytes(16)
    span = {
        "traceId": trace_id.hex().upper(),
        "spanId": span_id.hex(),
        "name": "run",
        "kind": 1,
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": 1700000000000000001,
        "attributes": [
            {"key": "a", "value": {"intValue": "5"}},
            {"key": "b", "value": {"intValue": 5}},
            {"key": "input.value", "value": {"stringValue": "Which river?"}},
        ],
        "links": [{"traceId": link.hex(), "spanId": span_id.hex().upper()}],
        "unknownField": {"x": [1]},
    }
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [span], "newThing": 1}]}], "more": None}
    assert post(shared_service, json.dumps(body).encode(), JSON).content == b"{}"
    assert decision(shared_service, trace_id)["spans"] == 1


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/json;charset=UTF-8",
        "Application/X-Protobuf",
        "application/x-protobuf; x=y",
    ],
)
def test_C16_content_types_with_parameters_and_in_upper_case(shared_service: Service, content_type: str):
    trace_id, request = one()
    body = dump_json_message(request) if "json" in content_type.lower() else request.SerializeToString()
    assert post(shared_service, body, content_type).status_code == 200
    assert decision(shared_service, trace_id)["spans"] == 3


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 32])
def test_C17_id_lengths(length: int):
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    spans.add(trace_id=b"t" * length, span_id=b"s" * 8, end_time_unix_nano=1)
    spans.add(trace_id=b"t" * 16, span_id=b"s" * length, end_time_unix_nano=1)
    spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, parent_span_id=bytes(8), end_time_unix_nano=1)
    result = cut(request, request.SerializeToString())
    assert result.rejected == (length != 16) + (length != 8)
    assert result.pieces[0].root_ended
    assert result.spans == 3


def test_C6_C17_spans_without_a_trace_are_refused_also_when_they_come_first():
    request = ExportTraceServiceRequest()
    for trace_id in (b"", b"t" * 16):
        spans = request.resource_spans.add().scope_spans.add().spans
        spans.add(trace_id=trace_id, span_id=b"s" * 8, end_time_unix_nano=1)
    result = cut(request, request.SerializeToString())
    assert result.rejected == 1
    assert [piece.trace_id for piece in result.pieces] == [b"t" * 16]
    assert len(parse_spans(result.pieces[0].data)) == 1


def test_C18_C19_C22_spans_are_cut_apart_byte_for_byte():
    """Flags, trace state, links, events, attribute values of every kind, unknown fields, schema URLs, dropped counts."""
    request = ExportTraceServiceRequest()
    traces = [new_trace(4) for _ in range(5)]
    for group in range(3):
        resource_spans = request.resource_spans.add(schema_url=f"schema{group}")
        resource_spans.resource.attributes.add(key="service.name").value.string_value = f"s{group}"
        resource_spans.resource.dropped_attributes_count = 3
        for scope in range(2):
            scope_spans = resource_spans.scope_spans.add(schema_url="inner")
            scope_spans.scope.name = f"scope{scope}"
            for trace_id, span_ids in traces:
                span = scope_spans.spans.add(
                    trace_id=trace_id, span_id=span_ids[scope], trace_state="vendor=1", flags=0xFFFFFFFF, name="ü"
                )
                span.links.add(trace_id=trace_id, span_id=span_ids[0], trace_state="a=b", flags=7)
                span.events.add(name="exception", time_unix_nano=1).attributes.add(key="k").value.bytes_value = b"\xff"
                value = span.attributes.add(key="mixed").value.array_value
                value.values.add().int_value = 1
                value.values.add().kvlist_value.values.add(key="empty")
                span.attributes.add(key="empty")
                span.MergeFromString(b"\xfa\x3f\x03new")  # field 1023, which this version does not know
    body = request.SerializeToString()
    result = cut(ExportTraceServiceRequest.FromString(body), body)
    assert [piece.trace_id for piece in result.pieces] == [trace_id for trace_id, _ in traces]

    def spans_of(message: ExportTraceServiceRequest, trace_id: bytes) -> list[tuple[bytes, ...]]:
        return [
            (
                rs.resource.SerializeToString(),
                rs.schema_url.encode(),
                ss.scope.SerializeToString(),
                s.SerializeToString(),
            )
            for rs in message.resource_spans
            for ss in rs.scope_spans
            for s in ss.spans
            if s.trace_id == trace_id
        ]

    for piece in result.pieces:
        cut_out = ExportTraceServiceRequest(resource_spans=parse_spans(piece.data))
        assert spans_of(cut_out, piece.trace_id) == spans_of(request, piece.trace_id)
        assert piece.span_ids == b"".join(
            s.span_id for rs in cut_out.resource_spans for ss in rs.scope_spans for s in ss.spans
        )
        for _, _, _, span in spans_of(request, piece.trace_id):
            assert span in piece.data


_IDS = (b"t" * 16, b"u" * 16, bytes(16), b"t" * 15, b"")
_SPAN_IDS = (b"s" * 8, b"r" * 8, b"q" * 8, bytes(8), b"s" * 7)


@st.composite
def requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    """Resources, scopes and spans in every arrangement, with usable ids and others."""
    request = ExportTraceServiceRequest()
    for _ in range(draw(st.integers(0, 3))):
        resource_spans = request.resource_spans.add(schema_url=draw(st.sampled_from(("", "outer"))))
        for _ in range(draw(st.integers(0, 2))):
            resource_spans.resource.attributes.add(key="service.name").value.string_value = draw(st.text(max_size=3))
        for _ in range(draw(st.integers(0, 3))):
            scope_spans = resource_spans.scope_spans.add(schema_url=draw(st.sampled_from(("", "inner"))))
            scope_spans.scope.name = draw(st.sampled_from(("", "scope")))
            for _ in range(draw(st.integers(0, 5))):
                span = scope_spans.spans.add(
                    trace_id=draw(st.sampled_from(_IDS)),
                    span_id=draw(st.sampled_from(_SPAN_IDS)),
                    parent_span_id=draw(st.sampled_from((b"", bytes(8), b"p" * 8))),
                    end_time_unix_nano=draw(st.sampled_from((0, 1, 2**64 - 1))),
                )
                span.attributes.add(key="k").value.string_value = draw(st.text(max_size=3))
    return request


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests())
def test_C18_a_request_in_json_is_cut_as_its_protobuf_form_is(request: ExportTraceServiceRequest):
    body = request.SerializeToString()
    wanted, given = cut(request, body), cut_resources(resources_from_json(dump_json_message(request)))
    assert (given.spans, given.rejected, given.message) == (wanted.spans, wanted.rejected, wanted.message)
    assert [(piece.trace_id, piece.span_ids, piece.root_ended) for piece in given.pieces] == [
        (piece.trace_id, piece.span_ids, piece.root_ended) for piece in wanted.pieces
    ]
    for piece, other in zip(given.pieces, wanted.pieces, strict=True):
        assert list(parse_spans(piece.data)) == list(parse_spans(other.data))
    assert ExportTraceServiceRequest.FromString(protobuf_from_json(dump_json_message(request))) == request


def test_C22_an_encoding_no_client_uses_is_read_all_the_same():
    """Tags in more bytes than needed, spans before their scope: protobuf allows both."""
    span = Span(trace_id=b"t" * 16, span_id=b"s" * 8, end_time_unix_nano=1).SerializeToString()
    scope_spans = b"\x92\x00" + bytes([len(span)]) + span + b"\x0a\x03\x0a\x01x"
    body = b"\x0a" + bytes([len(scope_spans) + 2]) + b"\x12" + bytes([len(scope_spans)]) + scope_spans
    message = ExportTraceServiceRequest.FromString(body)
    assert message.resource_spans[0].scope_spans[0].scope.name == "x"
    (piece,) = cut(message, body).pieces
    assert ExportTraceServiceRequest.FromString(piece.data) == message


def test_C21_default_ports_and_path(service):
    settings = Settings()
    assert (settings.listen.otlp_http, settings.listen.otlp_grpc) == ("127.0.0.1:4318", "127.0.0.1:4317")
    assert settings.receive.traces_path == "/v1/traces"
    moved = service(receive={"traces_path": "/otlp/v1/traces"})
    trace_id, request = one()
    headers = {"content-type": PROTOBUF}
    answer = httpx.post(moved.otlp_http + "/otlp/v1/traces", content=request.SerializeToString(), headers=headers)
    assert answer.status_code == 200
    assert post(moved, request.SerializeToString()).status_code == 404
    assert decision(moved, trace_id)["spans"] == 3


def test_C23_trace_state_and_flags_go_through_as_they_came(service):
    """W3C level 2: others' `ot=` member and the random flag survive on every span; ours is not written (design 6.5)."""
    with BackEnd() as back_end:
        live = service(policy={"keep_threshold": 0.0}, exporters=[{"name": "x", "endpoint": back_end.endpoint}])
        _, request = one(2)
        spans = request.resource_spans[0].scope_spans[0].spans
        spans[0].trace_state = spans[1].trace_state = "ot=th:c;rv:d29d6a7215ced0,vendor=1"
        spans[0].flags = spans[1].flags = 0xFFFF0303
        assert post(live, request.SerializeToString()).status_code == 200
        wait_until(lambda: len(back_end.spans()) == 2)
        assert {(s.span_id, s.trace_state, s.flags) for s in back_end.spans()} == {
            (s.span_id, s.trace_state, s.flags) for s in spans
        }


def test_C20_the_same_batch_twice_is_one_trace_with_each_span_once(shared_service: Service):
    trace_id, request = one(4)
    for _ in range(3):
        assert post(shared_service, request.SerializeToString()).status_code == 200
    assert decision(shared_service, trace_id)["spans"] == 4
    assert post(shared_service, request.SerializeToString()).status_code == 200
    late = httpx.get(f"{shared_service.api}/v1/decisions/{trace_id.hex()}").json()
    assert late["late_spans"] == 0


@pytest.mark.parametrize("signal", ["metrics", "logs"])
def test_C24_metrics_and_logs_are_answered_clearly(shared_service: Service, signal: str):
    answer = httpx.post(f"{shared_service.otlp_http}/v1/{signal}", content=b"", headers={"content-type": PROTOBUF})
    assert answer.status_code == 404
    assert status_of(answer).message.endswith(f"OTEL_{signal.upper()}_EXPORTER=none")
    call = grpc.insecure_channel(shared_service.otlp_grpc).unary_unary(
        f"/opentelemetry.proto.collector.{signal}.v1.{signal.title()}Service/Export"
    )
    with pytest.raises(grpc.RpcError) as refused:
        call(b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert f"OTEL_{signal.upper()}_EXPORTER=none" in (refused.value.details() or "")


def test_C24_logs_sent_to_the_traces_path_are_refused_with_a_reason(shared_service: Service):
    """`ExportLogsServiceRequest` has the same field numbers: its records decode as spans without ids."""
    record = b"\x2a\x05\x0a\x03log"  # LogRecord.body, field 5
    scope_logs = b"\x12" + bytes([len(record)]) + record
    resource_logs = b"\x12" + bytes([len(scope_logs)]) + scope_logs
    answer = post(shared_service, b"\x0a" + bytes([len(resource_logs)]) + resource_logs)
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert partial.rejected_spans == 1
        assert "trace_id has 0 bytes" in partial.error_message


def test_keys_are_asked_for_on_every_door(service):
    locked = service(api_key="secret")
    good = {"authorization": "Bearer secret"}
    _, request = one()
    body = request.SerializeToString()
    assert post(locked, body).status_code == 401
    assert status_of(post(locked, body, authorization="Bearer wrong")).code == grpc.StatusCode.UNAUTHENTICATED.value[0]
    assert post(locked, body, **good).status_code == 200
    with pytest.raises(grpc.RpcError) as refused:
        stub(locked).Export(request)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    stub(locked).Export(request, metadata=tuple(good.items()))
    assert_the_key_is_looked_at_before_the_message(locked)
    assert httpx.get(locked.api + "/v1/decisions").status_code == 401
    assert httpx.get(locked.api + "/v1/decisions", headers=good).status_code == 200
    assert httpx.get(locked.api + "/healthz").status_code == 200


def assert_the_key_is_looked_at_before_the_message(locked: Service) -> None:
    """A client without one is sent away while its message is still on its way."""
    sends = threading.Event()

    def message() -> Iterator[bytes]:
        sends.wait()
        yield b""

    with grpc.insecure_channel(locked.otlp_grpc) as channel:
        call = channel.stream_unary(f"/{SERVICE}/Export")
        try:
            with pytest.raises(grpc.RpcError) as refused:
                call(message(), timeout=20)
        finally:
            sends.set()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_requests_of_one_connection_are_answered_in_order_and_whole(shared_service: Service):
    trace_id, request = one()
    good, large = request.SerializeToString(), b"x" * 300_000

    def ask(line: bytes, body: bytes, more: bytes = b"") -> bytes:
        head = b"%b HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n%bcontent-length: %d\r\n\r\n"
        return head % (line, more, len(body)) + body

    requests = [
        (ask(b"POST /v1/traces", good), 200),
        (ask(b"POST /v1/nothing", large), 404),  # answered before its body has come
        (ask(b"HEAD /v1/traces", b""), 405),
        (ask(b"POST /v1/traces", good), 200),
        (ask(b"POST /v1/traces", b"\xff", b"connection: close\r\n"), 400),
    ]
    host, _, port = shared_service.otlp_http.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"".join(request for request, _ in requests))
        stream = connection.makefile("rb")
        for request, expected in requests:
            assert int(stream.readline().split()[1]) == expected
            headers = dict(line.rstrip().split(b": ", 1) for line in iter(stream.readline, b"\r\n"))
            body = b"" if request.startswith(b"HEAD") else stream.read(int(headers[b"content-length"]))
            assert expected == 200 or request.startswith(b"HEAD") or Status.FromString(body).message
        assert stream.read() == b""
    assert decision(shared_service, trace_id)["spans"] == 3


def test_a_client_that_asks_first_is_told_to_go_on(shared_service: Service):
    trace_id, request = one()
    body = request.SerializeToString()
    head = (
        "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
        f"expect: 100-continue\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    host, _, port = shared_service.otlp_http.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    assert decision(shared_service, trace_id)["spans"] == 3


def test_a_client_that_hangs_up_does_no_harm(shared_service: Service):
    host, _, port = shared_service.otlp_http.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\ncontent-length: 99\r\n\r\nab"
        )
    trace_id, request = one()
    assert post(shared_service, request.SerializeToString()).status_code == 200
    assert decision(shared_service, trace_id)["spans"] == 3
