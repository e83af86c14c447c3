"""Redaction: the secret is in no file of the state folder, everything else keeps its bytes."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from otlp_collector import Collector
from serving.harness import Service, make_request, new_trace, wait_until

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.buffer.received import JsonTrace, Received
from observer_serving.buffer.segments import framed
from observer_serving.config import RedactSettings
from observer_serving.metrics import Metrics
from observer_serving.receive.wire import cut
from observer_serving.redact import Redactor

SECRET = "ana@example.org"
RULES = {"patterns": {"email": r"[\w.]+@[\w.]+\.org"}, "attributes": ["user.*", "password"]}
EXPLICIT = [
    SECRET, f"to {SECRET}, {SECRET}", json.dumps({"a": SECRET.replace("@", "\u0040")}), '{"to": "ana\\u0040example.org"}',
    f'plain {SECRET} and "ana\\u0040example.org"',
]  # fmt: skip


def redactor(metrics: Metrics | None = None, **rules: Any) -> Redactor:
    return Redactor(RedactSettings.model_validate(RULES | rules), metrics or Metrics())


def put_everywhere(request: ExportTraceServiceRequest, text: str) -> None:
    """The text in every place of the first trace's root and of the envelopes that can hold one."""
    group = request.resource_spans[0]
    scope = group.scope_spans[0]
    span = scope.spans[0]
    group.resource.attributes.add(key="host").value.string_value = text
    group.resource.entity_refs.add(schema_url=text, type=text, id_keys=["host", text], description_keys=[text])
    group.schema_url = scope.schema_url = scope.scope.name = text
    scope.scope.attributes.add(key="s").value.string_value = text
    span.name = text
    span.status.message = text
    deep = span.attributes.add(key="deep").value.kvlist_value.values.add(key=text).value
    deep.array_value.values.add().string_value = text
    deep.array_value.values.add().bytes_value = b"\xff" + text.encode()
    deep.array_value.values.add().kvlist_value.values.add(key="password").value.int_value = 1234567
    span.attributes.add(key="user.name").value.string_value = "a name of no pattern"
    span.attributes.add(key="input.value").value.string_value = text
    event = span.events.add(name=text)
    event.attributes.add(key="exception.message").value.string_value = text
    span.links.add(trace_state=text).attributes.add(key="l").value.string_value = text


@pytest.mark.parametrize("text", EXPLICIT)
def test_no_place_keeps_it_and_other_spans_keep_their_bytes(text: str):
    request = make_request(new_trace(3), new_trace(2))
    put_everywhere(request, text)
    body = request.SerializeToString() + b"\x9a\x06\x03new"  # a field of a later version
    metrics = Metrics()
    message = ExportTraceServiceRequest.FromString(body)
    out = redactor(metrics).spans(message, body)
    for trace in (SECRET.encode(), b"ana\\u0040example.org", b"1234567", b"a name of no pattern"):
        assert trace not in out
    read = ExportTraceServiceRequest.FromString(out)
    assert read == ExportTraceServiceRequest.FromString(message.SerializeToString())
    before, after = (r.resource_spans[0].scope_spans[0].spans for r in (request, read))
    assert [s.SerializeToString() for s in before[1:]] == [s.SerializeToString() for s in after[1:]]
    assert [s.span_id for s in before] == [s.span_id for s in after]
    assert sum(piece.spans for piece in cut(read, out).pieces) == 5
    counted = metrics.registry.get_sample_value
    assert (counted("observer_redacted_total", {"rule": "email"}) or 0) >= 12
    assert counted("observer_redacted_total", {"rule": "password"}) == 1
    assert counted("observer_redacted_total", {"rule": "user.*"}) == 1
    assert redactor().spans(read, out) is out, "twice is once"


def test_what_holds_nothing_is_the_same_object():
    body = make_request(new_trace(3)).SerializeToString()
    assert redactor().spans(ExportTraceServiceRequest.FromString(body), body) is body
    data = b'{"question": "q",  "final_answer": "a", "n": 1e400}'
    assert redactor().trace(data) is data
    assert redactor().trace(b"{no json") == b"{no json"


CARD = 4111111111111111


@pytest.mark.parametrize("card", [CARD, float(CARD), -CARD, 41111111111111110.0])
def test_digits_are_found_in_numbers_too(card: float):
    metrics = Metrics()
    redact = redactor(metrics, patterns={"card": r"\d{16}"})
    request = make_request(new_trace(2))
    values = request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="n").value.array_value.values
    kinds = ["double_value"] if isinstance(card, float) else ["double_value", "int_value"]
    for kind in kinds:
        setattr(values.add(), kind, card)
    values.add().int_value = 7
    values.add().bool_value = True
    body = request.SerializeToString()
    out = ExportTraceServiceRequest.FromString(redact.spans(ExportTraceServiceRequest.FromString(body), body))
    got = out.resource_spans[0].scope_spans[0].spans[0].attributes[-1].value.array_value.values
    assert [value.string_value for value in got] == ["[redacted]"] * len(kinds) + ["", ""]
    assert (got[-2].int_value, got[-1].bool_value) == (7, True)

    args = {"n": card, "deep": [card, 7, 0.5, True, None]}
    trace = {"question": "q", "final_answer": "a", "latency_ms": float(CARD), "n": card, "tool_calls": [{"args": args}]}
    cleaned = json.loads(redact.trace(json.dumps(trace).encode()))
    gone = {"n": "[redacted]", "deep": ["[redacted]", 7, 0.5, True, None]}
    assert cleaned == trace | {"n": "[redacted]", "tool_calls": [{"args": gone}]}, "its own figures stay numbers"
    assert metrics.registry.get_sample_value("observer_redacted_total", {"rule": "card"}) == len(kinds) + 3
    named = redactor(attributes=["latency_ms"]).trace(json.dumps(trace).encode())
    assert json.loads(named)["latency_ms"] == "[redacted]"


TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(EXPLICIT), st.text(max_size=5).map(lambda t: f"{t} {SECRET} {t}")
)
JSON = st.recursive(
    st.one_of(TEXTS, st.integers(), st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


@given(JSON)
@hypothesis_settings(max_examples=150, deadline=None)
def test_any_json_comes_out_clean_and_of_the_same_shape(value: Any):
    out = json.loads(redactor().trace(json.dumps(value).encode()))
    assert SECRET not in json.dumps(out, ensure_ascii=False)
    assert type(out) is type(value)
    if SECRET not in json.dumps(value, ensure_ascii=False) and "\\u0040" not in json.dumps(value):
        assert out == value


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6))
@hypothesis_settings(max_examples=150, deadline=None)
def test_any_attributes_come_out_clean(pairs: list[tuple[str, str]]):
    request = make_request(new_trace(2))
    spans = request.resource_spans[0].scope_spans[0].spans
    for key, text in pairs:
        spans[1].attributes.append(KeyValue(key=key.encode(errors="replace").decode()))
        spans[1].attributes[-1].value.string_value = text.encode(errors="replace").decode()
    body = request.SerializeToString()
    out = redactor().spans(ExportTraceServiceRequest.FromString(body), body)
    assert SECRET.encode() not in out
    first = ExportTraceServiceRequest.FromString(out).resource_spans[0].scope_spans[0].spans[0]
    assert first.SerializeToString() == spans[0].SerializeToString()


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"patterns": {"a": "("}}, "not a regular expression"),
        ({"patterns": {"a": "x*"}}, "empty text"),
        ({"patterns": {"a": "redacted"}}, "choose another"),
    ],
)
def test_rules_that_cannot_work_are_refused(rules: dict, says: str):
    with pytest.raises(InputError, match=says):
        validated(RedactSettings, rules, where="redact")


def test_what_the_schema_does_not_know_is_left_out_since_it_cannot_be_searched():
    request = make_request(new_trace(3))
    unknown = b"\xc2\x0c" + bytes((len(SECRET),)) + SECRET.encode()  # field 200
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.MergeFromString(unknown)
    body = request.SerializeToString()
    assert SECRET.encode() in body
    out = redactor().spans(request, body)
    assert SECRET.encode() not in out
    assert ExportTraceServiceRequest.FromString(out) == request


@pytest.mark.parametrize("nested", ['{"a":' * 900 + "1" + "}" * 900, "[" * 900 + "]" * 900, "[" * 50_000])
def test_nesting_is_refused_alike_with_and_without_redaction(service, nested: str):
    body = '{"question": "q", "final_answer": "a", "more": ' + nested + "}"
    for rules in ({}, {"redact": RULES}):
        live: Service = service(**rules)
        answer = httpx.post(live.api + "/v1/traces", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), answer.text[:200]


def test_a_log_with_deep_nesting_is_read_back_though_rules_came(service):
    """As an older version, which refused none, may have left it."""
    live: Service = service(assembly={"quiet_period": "60s", "timeout": "120s"})
    live.kill()
    text = '{"question": "q", "final_answer": "a", "more": ' + '{"a":' * 900 + "1" + "}" * 900 + "}"
    entry = Received(1, (JsonTrace(b"t" * 16, text.encode()),))
    (live.home / "serving" / "wal" / f"{9:016x}.wal").write_bytes(b"".join(framed(entry.encode(), 0)))
    live.config.write_text(live.config.read_text() + "\nredact: " + json.dumps(RULES) + "\n")
    live.start()
    live.post_trace({"question": "q", "final_answer": "a"})
    live.wait_for_decisions(1)


def files_with(folder: Path, needle: bytes) -> list[str]:
    return [str(f) for f in folder.rglob("*") if f.is_file() and needle in f.read_bytes()]


def test_it_reaches_no_disk_no_log_and_no_back_end(service):
    with Collector() as back_end:
        live: Service = service(
            policy={"keep_threshold": 0.0}, redact=RULES, exporters=[{"name": "x", "endpoint": back_end.endpoint}],
            assembly={"quiet_period": "2s", "timeout": "60s"},
        )  # fmt: skip
        request = make_request(new_trace(3))
        put_everywhere(request, f"mail {SECRET}")
        live.export(request)
        as_json = {
            "question": f"Who is {SECRET}?",
            "final_answer": "x",
            "user.mail": "y@z",
            "tool_calls": [{"name": "t", "args": {"password": "hunter2", "to": [SECRET]}}],
        }
        live.post_trace(as_json)
        answer = httpx.post(live.api + "/v1/traces:score", params={"dry_run": True}, json=as_json, timeout=60)
        assert answer.status_code == 200
        assert list((live.home / "serving" / "wal").glob("*.wal"))
        for needle in (SECRET.encode(), b"hunter2", b"y@z"):
            assert files_with(live.home, needle) == []
        back_end.wait_for(lambda: len(back_end.accepted) == 5)
        assert live.terminate() == 0
        assert all(SECRET.encode() not in received.body for received in back_end.requests)
        assert any(b"[redacted]" in received.body for received in back_end.requests)
        for needle in (SECRET.encode(), b"hunter2"):
            assert files_with(live.home, needle) == []
        assert SECRET not in live.log()


def test_what_was_logged_before_the_rules_came_is_redacted_when_it_is_read_back(service):
    live: Service = service(policy={"keep_threshold": 0.0}, assembly={"quiet_period": "60s", "timeout": "120s"})
    request = make_request(new_trace(2))
    put_everywhere(request, SECRET)
    live.export(request)
    live.kill()
    text = live.config.read_text().replace("quiet_period: 60s", "quiet_period: 100ms")
    live.config.write_text(text + "\nredact: " + json.dumps(RULES) + "\n")
    live.start()
    live.wait_for_decisions(1)
    assert live.terminate() == 0
    wait_until(lambda: not files_with(live.home, SECRET.encode()))
