"""A trace given as JSON, written as spans: a root of kind AGENT with one TOOL child per call.

The inverse of `normalise` for question, calls, evidence and answer. What OpenInference has no attribute for, and
`normalise` would otherwise have to guess, is written under `observer.*`. Labels are never written: they must not reach
an attribute that a scorer could read.
"""

import hashlib
import json
import re
import uuid
from typing import Any

from openinference.semconv.resource import ResourceAttributes
from openinference.semconv.trace import OpenInferenceMimeTypeValues, OpenInferenceSpanKindValues, SpanAttributes
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from observer_core.traces.trace import ABSENT, ToolCall, Trace

EVIDENCE = "observer.evidence"
"""On the root: the evidence as a JSON array of texts, also when it is empty."""
TOOL_STATUS = "observer.tool.status"
"""On a TOOL span: a status that is neither `ok`, `error` nor absent, as JSON."""

SCOPE = "observer"
_WIRE_ID = re.compile(r"[0-9a-fA-F]{32}")
_MIN_STEP_NS = 1_000_000
"""Spans lie at least this far apart: back ends keep microseconds, and the order of calls must survive."""

_TEXT = OpenInferenceMimeTypeValues.TEXT.value
_JSON = OpenInferenceMimeTypeValues.JSON.value


def wire_trace_id(trace_id: str | None) -> bytes:
    """The 16 bytes on the wire: 32 hex digits as they are, any other string hashed, none drawn at random."""
    if trace_id is None:
        return uuid.uuid4().bytes
    if _WIRE_ID.fullmatch(trace_id) and int(trace_id, 16):
        return bytes.fromhex(trace_id)
    return hashlib.sha256(trace_id.encode()).digest()[:16]


def trace_to_spans(trace: Trace, *, project: str | None, now_ns: int) -> ResourceSpans:
    """The spans of a trace that ended at `now_ns`; the same trace id always gives the same span ids.

    Args:
        trace: what the agent did; its label and everything else that is not listed above stay out.
        project: Phoenix's project, as the resource attribute `openinference.project.name`.
        now_ns: Unix time in nanoseconds at which the root ends.
    """
    out = ResourceSpans()
    if project is not None:
        _put(out.resource, ResourceAttributes.PROJECT_NAME, project)
    scope_spans = out.scope_spans.add()
    scope_spans.scope.name = SCOPE
    trace_id = wire_trace_id(trace.trace_id)
    steps = len(trace.tool_calls) + 1
    took_ns = int(min(max(trace.latency_ms or 0.0, 0.0) * 1e6, now_ns))  # no span begins before 1970
    step_ns = max(_MIN_STEP_NS, took_ns // steps)
    start = now_ns - step_ns * steps

    root = scope_spans.spans.add(
        trace_id=trace_id,
        span_id=_span_id(trace_id, 0),
        name="agent",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start,
        end_time_unix_nano=now_ns,
    )
    root.status.code = Status.STATUS_CODE_OK
    _put(root, SpanAttributes.OPENINFERENCE_SPAN_KIND, OpenInferenceSpanKindValues.AGENT.value)
    _put_value(root, SpanAttributes.INPUT_VALUE, SpanAttributes.INPUT_MIME_TYPE, trace.question, _TEXT)
    _put_value(root, SpanAttributes.OUTPUT_VALUE, SpanAttributes.OUTPUT_MIME_TYPE, trace.final_answer, _TEXT)
    _put(root, EVIDENCE, _dumps(trace.evidence))
    if trace.model is not None:
        _put(root, SpanAttributes.LLM_MODEL_NAME, trace.model)
    for index, call in enumerate(trace.tool_calls):
        span = scope_spans.spans.add(
            trace_id=trace_id,
            span_id=_span_id(trace_id, index + 1),
            parent_span_id=root.span_id,
            name=call.name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=start + step_ns * index,
            end_time_unix_nano=start + step_ns * (index + 1),
        )
        _fill_tool_span(span, call)
    return out


def _fill_tool_span(span: Span, call: ToolCall) -> None:
    _put(span, SpanAttributes.OPENINFERENCE_SPAN_KIND, OpenInferenceSpanKindValues.TOOL.value)
    _put(span, SpanAttributes.TOOL_NAME, call.name)
    if call.args is not ABSENT:
        _put_value(span, SpanAttributes.INPUT_VALUE, SpanAttributes.INPUT_MIME_TYPE, _dumps(call.args), _JSON)
    if call.result_preview is not None:
        _put_value(span, SpanAttributes.OUTPUT_VALUE, SpanAttributes.OUTPUT_MIME_TYPE, call.result_preview, _TEXT)
    if call.status == "ok":
        span.status.code = Status.STATUS_CODE_OK
    elif call.status == "error":
        span.status.code = Status.STATUS_CODE_ERROR
    elif call.status is not ABSENT:
        span.status.code = Status.STATUS_CODE_ERROR
        _put(span, TOOL_STATUS, _dumps(call.status))


def root_span_id(trace_id: bytes) -> bytes:
    """The id of the root that `trace_to_spans` makes."""
    return _span_id(trace_id, 0)


def _span_id(trace_id: bytes, index: int) -> bytes:
    """Eight bytes that are never all zero, the same for the same trace and place."""
    return hashlib.sha256(trace_id + index.to_bytes(4, "big")).digest()[:8]


def _put(target: Any, key: str, value: str) -> None:
    target.attributes.add(key=key).value.string_value = value


def _put_value(span: Span, key: str, mime_key: str, value: str, mime: str) -> None:
    _put(span, key, value)
    _put(span, mime_key, mime)


def _dumps(value: Any) -> str:
    """JSON as people read it, or in ASCII where half a surrogate pair would break the protobuf string."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
