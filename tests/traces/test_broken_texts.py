"""Texts that were cut in the middle of a character."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_core.traces.broken_texts import whole_json, whole_protobuf
from observer_core.traces.otlp import DecodeError, decode_request, parse_request

HALVES = [b"\xed\xa0\xbd", b"\xc3", b"\xf0\x9f\x98"]
"""What protobufjs makes of half an emoji, and what a limit in bytes leaves of a letter and of an emoji."""


def request() -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    group = made.resource_spans.add(schema_url="MARK")
    group.resource.entity_refs.add(id_keys=["a", "MARK"])
    scope = group.scope_spans.add()
    for number in range(1, 4):
        span = scope.spans.add(trace_id=b"\xff" * 16, span_id=bytes([number]) * 8, name="é", flags=257)
        span.attributes.add(key="k").value.bytes_value = b"\xff\xfe"
    deep = scope.spans[1].attributes.add(key="MARK").value.kvlist_value.values.add(key="a").value
    deep.array_value.values.add().string_value = "before MARK"
    return made


@pytest.mark.parametrize("half", HALVES)
def test_of_a_request_only_the_broken_texts_change(half: bytes):
    body = request().SerializeToString().replace(b"MARK", (half * 4)[:4]) + b"\x9a\x06\x03new"
    with pytest.raises(DecodeError):
        parse_request(body)
    mended = whole_protobuf(body)
    assert mended is not None
    assert whole_protobuf(mended) is None, "twice is once"
    read = parse_request(mended)
    assert mended.endswith(b"\x9a\x06\x03new")
    expected = request()
    broken = (half * 4)[:4].decode(errors="replace")
    group = expected.resource_spans[0]
    group.schema_url = group.resource.entity_refs[0].id_keys[1] = broken
    attribute = group.scope_spans[0].spans[1].attributes[1]
    attribute.key = broken
    attribute.value.kvlist_value.values[0].value.array_value.values[0].string_value = f"before {broken}"
    read.DiscardUnknownFields()
    assert read == expected


def test_what_is_no_request_stays_none():
    assert whole_protobuf(b"\xff\xff") is None
    assert whole_json(b"{nonsense") is None


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_in_json_can_be_read(text: str):
    escaped = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": text}]}]}]}).encode()
    mended = whole_json(escaped) or escaped
    (span,) = decode_request(mended, "json").resource_spans[0].scope_spans[0].spans
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert span.name.replace("\ufffd", "") == expected.replace("\ufffd", "")
    assert (whole_json(escaped) is None) == (
        expected == text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    )


def test_json_escapes_that_only_look_like_halves_stay():
    body = rb'{"a": "\\ud800", "b": "\\\ud83d\ude00"}'
    assert whole_json(body) is None
    assert whole_json(rb'{"a": "\\\ud800\n"}') == rb'{"a": "\\\ufffd\n"}'
    assert whole_json(b'{"a": "\xff"}') == '{"a": "\ufffd"}'.encode()
