"""OTLP decoding against protobuf's own JSON rules as the oracle, and against every rule in which OTLP differs."""

import base64
import contextlib
import json
import math

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from observer_core.errors import InputError
from observer_core.traces.otlp import DecodeError, decode_request, read_otlp_file, scan_otlp_file, write_otlp_file
from observer_core.traces.otlp_json import dump_json_message, to_json_object
from observer_core.traces.otlp_json_read import MAX_DEPTH
from observer_core.traces.otlp_schema import OtlpMessage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDS = st.binary(max_size=17)
U32 = st.integers(0, 2**32 - 1)
TIMES = st.integers(0, 2**64 - 1)

SCALARS = st.one_of(
    st.just(AnyValue()),
    TEXT.map(lambda v: AnyValue(string_value=v)),
    st.booleans().map(lambda v: AnyValue(bool_value=v)),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: AnyValue(int_value=v)),
    st.one_of(st.floats(allow_nan=False), st.just(math.nan)).map(lambda v: AnyValue(double_value=v)),
    st.binary(max_size=9).map(lambda v: AnyValue(bytes_value=v)),
)


def _nested(values):
    def array(items):
        out = AnyValue()
        out.array_value.SetInParent()
        out.array_value.values.extend(items)
        return out

    def kvlist(items):
        out = AnyValue()
        out.kvlist_value.SetInParent()
        out.kvlist_value.values.extend(KeyValue(key=key, value=value) for key, value in items)
        return out

    lists = st.lists(values, max_size=3)
    return st.one_of(lists.map(array), st.lists(st.tuples(TEXT, values), max_size=3).map(kvlist))


VALUES = st.recursive(SCALARS, _nested, max_leaves=6)
ATTRIBUTES = st.lists(st.builds(KeyValue, key=TEXT, value=VALUES), max_size=3)
EVENTS = st.builds(Span.Event, time_unix_nano=TIMES, name=TEXT, attributes=ATTRIBUTES, dropped_attributes_count=U32)
LINKS = st.builds(Span.Link, trace_id=IDS, span_id=IDS, trace_state=TEXT, attributes=ATTRIBUTES, flags=U32)


@st.composite
def spans(draw):
    span = Span(
        trace_id=draw(IDS), span_id=draw(IDS), parent_span_id=draw(IDS), trace_state=draw(TEXT), flags=draw(U32),
        name=draw(TEXT), kind=draw(st.integers(0, 9)), start_time_unix_nano=draw(TIMES),
        end_time_unix_nano=draw(TIMES), attributes=draw(ATTRIBUTES), dropped_attributes_count=draw(U32),
        events=draw(st.lists(EVENTS, max_size=2)), links=draw(st.lists(LINKS, max_size=2)),
    )  # fmt: skip
    if draw(st.booleans()):
        span.status.code = draw(st.integers(0, 3))
        span.status.message = draw(TEXT)
    return span


@st.composite
def requests(draw):
    out = ExportTraceServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        resource_spans = ResourceSpans(schema_url=draw(TEXT))
        resource_spans.resource.attributes.extend(draw(ATTRIBUTES))
        scope_spans = ScopeSpans(spans=draw(st.lists(spans(), max_size=2)), schema_url=draw(TEXT))
        scope_spans.scope.name = draw(TEXT)
        resource_spans.scope_spans.append(scope_spans)
        out.resource_spans.append(resource_spans)
    return out


def _base64_ids(obj):
    """OTLP/JSON as protobuf's JSON parser wants it: the ids in base64."""
    if isinstance(obj, list):
        return [_base64_ids(item) for item in obj]
    if not isinstance(obj, dict):
        return obj
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else _base64_ids(value)
        for key, value in obj.items()
    }


@given(requests())
@settings(max_examples=60, deadline=None)
def test_json_round_trip_agrees_with_protobuf_json(request_):
    text = dump_json_message(request_)
    want = request_.SerializeToString(deterministic=True)
    assert decode_request(text, "json").SerializeToString(deterministic=True) == want
    oracle = json_format.ParseDict(_base64_ids(json.loads(text)), ExportTraceServiceRequest())
    assert oracle.SerializeToString(deterministic=True) == want


@given(requests())
@settings(max_examples=60, deadline=None)
def test_protobuf_json_output_is_read_once_its_ids_are_hex(request_):
    obj = json_format.MessageToDict(request_, use_integers_for_enums=True)

    def hex_ids(value):
        if isinstance(value, list):
            return [hex_ids(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            k: base64.b64decode(v).hex().upper() if k in ("traceId", "spanId", "parentSpanId") else hex_ids(v)
            for k, v in value.items()
        }

    decoded = decode_request(json.dumps(hex_ids(obj)).encode(), "json")
    assert decoded.SerializeToString(deterministic=True) == request_.SerializeToString(deterministic=True)


def _request(span: str) -> bytes:
    return f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}]}}]}}]}}'.encode()


def _span(span: str) -> Span:
    return decode_request(_request(span), "json").resource_spans[0].scope_spans[0].spans[0]


def _attribute(value: str) -> str:
    return f'{{"attributes":[{{"key":"k","value":{value}}}]}}'


def _value(value: str) -> AnyValue:
    return _span(_attribute(value)).attributes[0].value


def test_ids_are_hex_in_either_case_also_in_links():
    span = _span(
        '{"traceId":"5B8EFFF798038103D269B633813FC60C","spanId":"eee19b7ec3c1b174","parentSpanId":"",'
        '"links":[{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"EEE19B7EC3C1B174"}]}'
    )
    assert span.trace_id == span.links[0].trace_id == bytes.fromhex("5b8efff798038103d269b633813fc60c")
    assert span.span_id == span.links[0].span_id == bytes.fromhex("eee19b7ec3c1b174")
    assert span.parent_span_id == b""


@pytest.mark.parametrize("text", ['"5"', "5", "5.0", "5e0"])
def test_integers_are_strings_or_numbers(text):
    assert _value(f'{{"intValue":{text}}}').int_value == 5
    assert _span(f'{{"startTimeUnixNano":{text}}}').start_time_unix_nano == 5


@pytest.mark.parametrize(
    ("text", "want"), [('"Infinity"', math.inf), ('"-Infinity"', -math.inf), ("3", 3.0), ('"1.5"', 1.5)]
)
def test_doubles(text, want):
    assert _value(f'{{"doubleValue":{text}}}').double_value == want


def test_nan_and_bytes_and_empty_values():
    assert math.isnan(_value('{"doubleValue":"NaN"}').double_value)
    assert _value('{"bytesValue":"-_8"}').bytes_value == b"\xfb\xff"
    assert _value("{}").WhichOneof("value") is None
    assert _value('{"kvlistValue":{}}').WhichOneof("value") == "kvlist_value"
    assert _value('{"intValue":0}').WhichOneof("value") == "int_value"
    assert _value('{"intValue":null}').WhichOneof("value") is None


def test_unknown_fields_and_original_names_are_ignored():
    assert _span('{"name":"a","trace_id":"zz","new":{"deep":[1]},"kind":1}') == Span(name="a", kind=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("span", "path", "problem"),
    [
        ('{"traceId":"W47/95gDgQPSabYzgT/GDA=="}', ".traceId", "hex"),
        ('{"traceId":"abc"}', ".traceId", "hex"),
        ('{"links":[{},{"spanId":7}]}', ".links[1].spanId", "a string, not a number"),
        ('{"kind":"SPAN_KIND_SERVER"}', ".kind", "enum names"),
        ('{"status":{"code":"2"}}', ".status.code", "integer"),
        (_attribute('{"stringValue":1}'), ".attributes[0].value.stringValue", "a string"),
        (_attribute('{"intValue":"1","boolValue":true}'), ".attributes[0].value.intValue", "one type"),
        ('{"attributes":[null]}', ".attributes[0]", "an object"),
        ('{"attributes":{}}', ".attributes", "an array"),
        ('{"flags":-1}', ".flags", "from 0"),
        ('{"flags":true}', ".flags", "a number, not a boolean"),
        ('{"startTimeUnixNano":18446744073709551616}', ".startTimeUnixNano", "integer"),
        (_attribute('{"intValue":-9223372036854775809}'), ".attributes[0].value.intValue", "integer"),
        ('{"startTimeUnixNano":"1.5"}', ".startTimeUnixNano", "integer"),
        (_attribute('{"doubleValue":"inf"}'), ".attributes[0].value.doubleValue", "NaN"),
        (_attribute('{"doubleValue":"１"}'), ".attributes[0].value.doubleValue", "NaN"),
        (_attribute('{"bytesValue":"*"}'), ".attributes[0].value.bytesValue", "base64"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(span, path, problem):
    with pytest.raises(DecodeError) as caught:
        decode_request(_request(span), "json")
    assert caught.value.path == "resourceSpans[0].scopeSpans[0].spans[0]" + path
    assert problem in caught.value.problem


def test_the_messages_read_from_json_have_every_field_of_the_schema():
    def reachable(descriptor, found):
        if descriptor.full_name not in found:
            found[descriptor.full_name] = {field.json_name for field in descriptor.fields}
            for field in descriptor.fields:
                if field.message_type is not None:
                    reachable(field.message_type, found)
        return found

    ours = {
        kind.descriptor.full_name: {field.encode_name for field in msgspec.structs.fields(kind)}
        for kind in OtlpMessage.__subclasses__()
    }
    assert ours == reachable(ExportTraceServiceRequest.DESCRIPTOR, {})


@pytest.mark.parametrize("size", [0, 127, 128, 15_743, 15_744, 16_383, 16_384, 70_000])
@pytest.mark.parametrize("key", ["", "k", "k" * 127, "k" * 128, "ключ" * 30, "k" * 20_000])
def test_texts_of_every_length_of_length(size, key):
    attributes = [KeyValue(key=key, value=AnyValue(string_value="é" * (size // 2) + "e" * (size % 2)))] * 2
    request = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[Span(attributes=attributes)])])]
    )
    assert decode_request(dump_json_message(request), "json") == request


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"{", b'{"resourceSpans":[', b"\xff\xfe", b'{"resourceSpans":3}', b'"\\ud800"', b'{"x":' + b"[" * 100_000,
        _request('{"name":"\\ud800"}'), _request('{"name":"a"}').replace(b'"a"', b'"\xff"'), _request('{"name":"a"}') + b"x",
    ],
)  # fmt: skip
def test_bodies_that_are_not_otlp_json(body):
    with pytest.raises(DecodeError):
        decode_request(body, "json")


@pytest.mark.parametrize("digits", [309, 4300])
def test_an_integer_beyond_all_doubles_is_refused(digits):
    with pytest.raises(DecodeError, match=r"doubleValue: must be a number"):
        _value('{"doubleValue":' + "9" * digits + "}")


def test_what_is_decoded_can_be_parsed_again_however_deep():
    def nested(levels):
        return '{"arrayValue":{"values":[' * levels + '{"intValue":1}' + "]}}" * levels

    fitting = _request(f'{{"attributes":[{{"key":"k","value":{nested(MAX_DEPTH // 2 - 3)}}}]}}')
    request = decode_request(fitting, "json")
    assert decode_request(request.SerializeToString(), "protobuf") == request
    with pytest.raises(DecodeError, match="nested deeper"):
        _value(nested(200))


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_garbage_is_decoded_or_refused(body):
    for content_type in ("protobuf", "json"):
        with contextlib.suppress(DecodeError):  # any other exception fails
            decode_request(body, content_type)


@pytest.mark.parametrize("name", ["spans.jsonl", "spans.json", "spans.pb"])
def test_files_round_trip(tmp_path, name):
    wanted = [
        decode_request(_request(f'{{"name":"{n}","spanId":"0a0b0c0d0e0f{n}"}}'), "json") for n in ("1011", "1213")
    ]
    write_otlp_file(tmp_path / name, wanted)
    assert read_otlp_file(tmp_path / name) == wanted


def test_a_bare_protobuf_message_and_an_indented_object_are_files_too(tmp_path):
    request = decode_request(_request('{"name":"a"}'), "json")
    (tmp_path / "one.pb").write_bytes(request.SerializeToString())
    (tmp_path / "one.json").write_text(json.dumps(to_json_object(request), indent=2))
    assert read_otlp_file(tmp_path / "one.pb") == read_otlp_file(tmp_path / "one.json") == [request]


def test_a_bad_line_is_named_and_the_others_are_usable(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_bytes(_request('{"name":"a"}') + b"\n\n" + _request('{"kind":"x"}') + b"\n")
    requests, problems = scan_otlp_file(path)
    assert len(requests) == 1
    assert [problem.line for problem in problems] == [3]
    with pytest.raises(InputError, match=r"spans\.jsonl:3: resourceSpans\[0\].*kind.*1 requests were usable"):
        read_otlp_file(path)


def test_a_cut_protobuf_file_is_refused(tmp_path):
    path = tmp_path / "spans.pb"
    write_otlp_file(path, [decode_request(_request('{"name":"abcdefgh"}'), "json")] * 2)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="not a protobuf"):
        read_otlp_file(path)
