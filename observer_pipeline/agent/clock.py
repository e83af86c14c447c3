"""Times for seeded traces: as a hosted model and a real search would take, drawn from the seed alone.

The order of all beginnings and ends stays; what lies between them is drawn anew. What a span's duration says then
depends on nothing but its kind, so neither a fault nor the machine that ran the agent shows in it.
"""

import random
from collections.abc import Sequence

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

_MODEL_S, _TOOL_S, _STEP_S = 0.8, 0.06, 0.0006
_SPREAD = 0.5
"""Medians in seconds of a model call, a tool call and any other step, and the sigma of their log-normal."""
_MODEL_SPANS = ("call_llm", "generate_content")
_TOOL_SPANS = ("execute_tool",)


def retime(
    groups: Sequence[ResourceSpans], order: Sequence[tuple[int, bool]], *, rng: random.Random, start_ns: int
) -> float:
    """Give all spans of a trace new times from `start_ns` on; returns the trace's duration in milliseconds.

    Args:
        groups: all spans of one trace; changed in place.
        order: (span id, whether it began) of every beginning and end, in order.
    """
    spans = {
        int.from_bytes(span.span_id, "big"): span for group in groups for ss in group.scope_spans for span in ss.spans
    }
    parents = {span.parent_span_id for span in spans.values()}
    now = start_ns
    for span_id, begins in order:
        span = spans[span_id]
        leaf = span.span_id not in parents
        now += _pause_ns(span, rng) if leaf and not begins else _draw_ns(_STEP_S, rng)
        if begins:
            span.start_time_unix_nano = now
            continue
        span.end_time_unix_nano = now
        for event in span.events:
            event.time_unix_nano = now
    return (now - start_ns) / 1e6


def _pause_ns(span: Span, rng: random.Random) -> int:
    if span.name.startswith(_MODEL_SPANS):
        return _draw_ns(_MODEL_S, rng)
    return _draw_ns(_TOOL_S if span.name.startswith(_TOOL_SPANS) else _STEP_S, rng)


def _draw_ns(median_s: float, rng: random.Random) -> int:
    return int(median_s * rng.lognormvariate(0, _SPREAD) * 1e9) + 1
