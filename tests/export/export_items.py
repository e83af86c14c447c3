"""Decisions and items to export."""

from dataclasses import replace

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.decisions import Decision
from observer_serving.export import ExportItem, decorate_root

DECISION = Decision(
    trace_id="aa" * 16, decision="keep", reason="score", p_wrong=0.75, p_wrong_raw=0.7, threshold=0.5,
    keep_probability=1.0, severity="normal", model="laya-mini", model_version="7", policy_version="p1",
    project="agent", mode="enforce", would_decide="keep", complete_reason="root_ended", spans=1,
    received_at="2026-11-30T12:00:00.000000Z", decided_at="2026-11-30T12:00:02.000000Z", latency_ms=12.5,
    answers={"failure": {"type": "choice"}},
)  # fmt: skip


def make_item(
    name: str, *, late: bool = False, padding: int = 0, spans: int = 1, ends_early: bool = False
) -> ExportItem:
    """One trace whose spans are named `name`; the first is its root."""
    group = ResourceSpans()
    scope_spans = group.scope_spans.add()
    trace_id = name.encode().rjust(16, b"t")
    for index in range(spans):
        span_id = bytes([255 if late else 1]) + trace_id[-6:] + bytes([index])
        span = scope_spans.spans.add(trace_id=trace_id, span_id=span_id, name=name)
        span.start_time_unix_nano = 1_790_000_000 * 10**9
        span.end_time_unix_nano = span.start_time_unix_nano + (-1 if ends_early else 1) * 10**6
        if index:
            span.parent_span_id = scope_spans.spans[0].span_id
        if padding:
            span.attributes.add(key="padding").value.string_value = "x" * padding
    if late:
        return ExportItem(None, [group])
    decided = replace(DECISION, trace_id=trace_id.hex(), spans=spans)
    return ExportItem(decided, decorate_root([group], scope_spans.spans[0].span_id, decided))
