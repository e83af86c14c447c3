"""Requests of very many tiny values, which take a hundred times their size once they are read."""

import gzip
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from serving.harness import Service

from observer_core.traces.otlp_json import dump_json_message
from observer_serving.receive.layout import OddWireError
from observer_serving.receive.status import RefusedError
from observer_serving.receive.values import check_json, check_protobuf

MOST = 50_000
AS_JSON = {"content-type": "application/json"}


def delimited(tag: int, content: bytes) -> bytes:
    size, length = bytearray(), len(content)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((tag, *size, length)) + content


def one_span(fields: bytes) -> bytes:
    """A request with one span that has these fields too."""
    span = delimited(0x0A, secrets.token_bytes(16)) + delimited(0x12, secrets.token_bytes(8)) + fields
    return delimited(0x0A, delimited(0x12, delimited(0x12, span)))


def value(content: bytes) -> bytes:
    """An attribute with this `AnyValue`."""
    return delimited(0x4A, delimited(0x0A, b"key") + delimited(0x12, content))


MANY: dict[str, Callable[[int], bytes]] = {
    "attributes": lambda count: b"\x4a\x00" * count,
    "attributes, tags in two bytes": lambda count: b"\xca\x00\x00" * count,
    "events": lambda count: b"\x5a\x00" * count,
    "links": lambda count: b"\x6a\x00" * count,
    "attributes of events": lambda count: delimited(0x5A, b"\x1a\x00" * count),
    "attributes of links": lambda count: delimited(0x6A, b"\x22\x00" * count),
    "elements of an array": lambda count: value(delimited(0x2A, b"\x0a\x00" * count)),
    "entries of a map": lambda count: value(delimited(0x32, b"\x0a\x00" * count)),
}


@pytest.mark.parametrize("kind", MANY)
def test_too_many_values_of_a_request_are_counted_before_they_are_read(service: Callable[..., Any], kind: str):
    live: Service = service(receive={"max_request_values": MOST})
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
    for count, wanted in ((MOST - 100, 200), (MOST + 1, 413)):
        body = one_span(MANY[kind](count))
        answer = httpx.post(f"{live.otlp_http}/v1/traces", content=gzip.compress(body), headers=headers)
        assert answer.status_code == wanted
        if wanted == 413:
            assert "receive.max_request_values" in Status.FromString(answer.content).message
            with grpc.insecure_channel(live.otlp_grpc) as channel, pytest.raises(grpc.RpcError) as refused:
                TraceServiceStub(channel).Export(ExportTraceServiceRequest.FromString(body))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]


def test_too_many_values_in_json(service: Callable[..., Any]):
    live: Service = service(receive={"max_request_values": MOST})
    few, many = (one_span(b"\x4a\x00" * count) for count in (MOST // 3, MOST))
    doors = [
        (
            f"{live.otlp_http}/v1/traces",
            *(dump_json_message(ExportTraceServiceRequest.FromString(b)) for b in (few, many)),
        ),
        (f"{live.api}/v1/traces", trace("{}", 100), trace("{}", MOST)),
        (f"{live.api}/v1/traces:score", trace('"a"', 100), trace('"a"', MOST)),
    ]
    for url, fits, does_not in doors:
        for body, wanted in ((fits, (200, 202)), (does_not, (413,))):
            answer = httpx.post(url, content=body, headers=AS_JSON, timeout=30)
            assert answer.status_code in wanted, url
        assert "receive.max_request_values" in answer.text  # pyright: ignore[reportPossiblyUnboundVariable]


def trace(item: str, count: int) -> bytes:
    """A trace with a field of many items."""
    return f'{{"question": "q", "final_answer": "a", "more": [{",".join([item] * count)}]}}'.encode()


def test_what_is_wrong_in_every_item_is_found_once(service: Callable[..., Any]):
    """A problem noted for each of 300,000 items took two gigabytes."""
    live: Service = service()
    before = most_memory(live)
    for name, item in (("evidence", "1"), ("tool_calls", "{}")):
        body = f'{{"question": "q", "final_answer": "a", "{name}": [{",".join([item] * 300_000)}]}}'.encode()
        answer = httpx.post(f"{live.api}/v1/traces", content=body, headers=AS_JSON, timeout=60)
        assert answer.status_code == 400
        assert f"{name}.0" in answer.json()["error"]
    assert most_memory(live) - before < 300 << 20


def most_memory(live: Service) -> int:
    """The most bytes that it has had in memory so far."""
    assert live.process is not None
    status = Path(f"/proc/{live.process.pid}/status")
    if not status.exists():
        pytest.skip("this system does not say how much memory a process has had")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) << 10


def _array(items: list[AnyValue]) -> AnyValue:
    out = AnyValue()
    out.array_value.values.extend(items)
    return out


def _map(items: list[AnyValue]) -> AnyValue:
    out = AnyValue()
    for item in items:
        out.kvlist_value.values.add(key="k").value.CopyFrom(item)
    return out


values = st.recursive(
    st.one_of(st.just(AnyValue()), st.text(max_size=3).map(lambda text: AnyValue(string_value=text))),
    lambda inner: st.lists(inner, max_size=3).map(_array) | st.lists(inner, max_size=3).map(_map),
    max_leaves=8,
)


@st.composite
def requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    span = resource_spans.scope_spans.add().spans.add(trace_id=bytes(16), start_time_unix_nano=1, flags=7)
    for holder in (resource_spans.resource, span, span.events.add(), span.links.add()):
        for one in draw(st.lists(values, max_size=2)):
            holder.attributes.add(key="k").value.CopyFrom(one)
    return request


def elements(message: Message) -> int:
    """Elements of repeated fields in a message, and in all that it holds."""
    count = 0
    for field, content in message.ListFields():
        items = list(content) if field.is_repeated else [content]
        count += len(items) if field.is_repeated else 0
        count += sum(elements(item) for item in items) if field.message_type is not None else 0
    return count


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests())
def test_exactly_the_elements_of_repeated_fields_are_counted(request: ExportTraceServiceRequest):
    body, count = request.SerializeToString(), elements(request)
    check_protobuf(body, count)
    with pytest.raises(RefusedError):
        check_protobuf(body, count - 1)


@pytest.mark.parametrize("cut_off", [1, 3, 20])
def test_what_ends_too_early_cannot_be_counted(cut_off: int):
    with pytest.raises(OddWireError):
        check_protobuf(one_span(b"\x4a\x02\x0a\x00" * 100)[:-cut_off], 150)


def test_text_is_not_taken_for_values():
    text = ",[{" * 1000 + '\\"' * 1000
    check_json(f'{{"a": "{text}", "b": ["{text}"]}}'.encode(), 10)
    with pytest.raises(RefusedError):
        check_json(f'{{"a": "{text}", "b": [{"1," * 10}1]}}'.encode(), 10)


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 1_000_000, b'"a\\', b'"' * 2_000_001])
def test_a_text_without_an_end_is_read_once(text: bytes):
    """Looking for its end from every quotation mark in it took minutes for a megabyte, and hours for ten."""
    check_json(text + b",[{" * 100, 1000)
    with pytest.raises(RefusedError):
        check_json(b",[{" * 1000 + text, 1000)
