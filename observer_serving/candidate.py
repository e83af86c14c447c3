"""A complete trace on its way to a decision: what the scorer reads, what the policy looks at, what is forwarded."""

import logging
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.decisions import CompleteReason
from observer_core.policy import PolicyFacts
from observer_core.traces.jsonl import parse_trace
from observer_core.traces.normalise import normalise
from observer_core.traces.to_spans import root_span_id, trace_to_spans
from observer_core.traces.trace import ABSENT, Trace
from observer_serving.assemble import AssembledTrace
from observer_serving.buffer.received import JsonTrace
from observer_serving.receive.wire import split_ids

log = logging.getLogger(__name__)

_LARGE_SPANS = 256
_LARGE_BYTES = 1 << 20

JSON_PROJECT = "default"
"""The project of a trace posted as JSON that names none (`project` is an unknown field of a trace, so it is kept)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trace to decide. `trace` is `None` when the spans could not be read as an agent run: then it goes unscored.

    `pieces` are the spans as received, or the one JSON text when `is_json`; `segments` hold the log until settled.
    """

    trace_id: str
    trace: Trace | None
    facts: PolicyFacts
    root_span_id: bytes | None
    pieces: tuple[bytes, ...]
    is_json: bool
    span_ids: bytes
    spans: int
    duplicates: int
    complete_reason: CompleteReason
    received_ns: int
    completed_at: float
    segments: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the pieces."""
        return sum(map(len, self.pieces))

    def resource_spans(self) -> list[ResourceSpans]:
        """What is forwarded: the spans byte for byte (each once), or those made from the JSON."""
        if self.is_json:
            assert self.trace is not None
            return [trace_to_spans(self.trace, project=self.facts.project, now_ns=self.received_ns)]
        return parse_spans(*self.pieces, only=set(split_ids(self.span_ids)) if self.duplicates else None)


def is_large(trace: AssembledTrace | Candidate) -> bool:
    """Whether a trace's neighbours should not wait while its spans are read or written."""
    return trace.spans > _LARGE_SPANS or trace.size > _LARGE_BYTES


def parse_spans(*pieces: bytes, only: set[bytes] | None = None) -> list[ResourceSpans]:
    """The envelopes in all pieces. With `only`, each span of those ids once and no other span."""
    every = [group for piece in pieces for group in ExportTraceServiceRequest.FromString(piece).resource_spans]
    if only is None:
        return every
    wanted = set(only)
    for resource_spans in every:
        for scope_spans in resource_spans.scope_spans:
            for i in range(len(scope_spans.spans) - 1, -1, -1):
                if scope_spans.spans[i].span_id in wanted:
                    wanted.discard(scope_spans.spans[i].span_id)
                else:
                    del scope_spans.spans[i]
    return [rs for rs in every if any(ss.spans for ss in rs.scope_spans)]


def from_spans(assembled: AssembledTrace) -> Candidate:
    """The candidate of an assembled trace.

    Raises:
        Exception: whatever the dialects make of spans they cannot read; the caller then uses `unreadable`.
    """
    only = set(split_ids(assembled.span_ids)) if assembled.duplicates else None
    normalised = normalise(parse_spans(*assembled.pieces, only=only))
    facts = PolicyFacts(
        statuses=normalised.statuses,
        kinds=normalised.kinds,
        tools=normalised.tools,
        attributes=normalised.attributes,
        service=normalised.service,
        project=normalised.project,
        spans=assembled.spans,
        duration_ms=normalised.duration_ms,
    )
    return _candidate(assembled, normalised.trace, facts, normalised.root_span_id)


def read_spans(assembled: AssembledTrace) -> Candidate:
    """As `from_spans`; spans that cannot be read as an agent run make a candidate without a trace, which is decided
    without a score."""
    try:
        return from_spans(assembled)
    except Exception:
        log.exception("cannot read trace %s as an agent run; it goes unscored", assembled.trace_id.hex())
        return unread(assembled)


def unread(assembled: AssembledTrace) -> Candidate:
    """The candidate of a trace that has not been read, or cannot be."""
    return _candidate(assembled, None, PolicyFacts(spans=assembled.spans), None)


def _candidate(
    assembled: AssembledTrace, trace: Trace | None, facts: PolicyFacts, root_span_id: bytes | None
) -> Candidate:
    return Candidate(
        trace_id=assembled.trace_id.hex(),
        trace=trace,
        facts=facts,
        root_span_id=root_span_id,
        pieces=assembled.pieces,
        is_json=False,
        span_ids=assembled.span_ids,
        spans=assembled.spans,
        duplicates=assembled.duplicates,
        complete_reason=assembled.complete_reason,
        received_ns=assembled.received_ns,
        completed_at=assembled.completed_at,
        segments=assembled.segments,
    )


def from_json(item: JsonTrace, *, received_ns: int, segment: int, now: float) -> Candidate:
    """The candidate of a trace posted as JSON (validated when it was accepted); complete as it stands."""
    trace = parse_trace(item.data.decode("utf-8"))
    trace.trace_id = item.trace_id.hex()
    return Candidate(
        trace_id=item.trace_id.hex(),
        trace=trace,
        facts=json_facts(trace),
        root_span_id=root_span_id(item.trace_id),
        pieces=(item.data,),
        is_json=True,
        span_ids=b"",
        spans=1 + len(trace.tool_calls),
        duplicates=0,
        complete_reason="root_ended",
        received_ns=received_ns,
        completed_at=now,
        segments=(segment,),
    )


def json_facts(trace: Trace) -> PolicyFacts:
    """What the policy may look at in a trace given as JSON; its unknown scalar fields count as attributes."""
    project = _text(trace.extra.get("project") or JSON_PROJECT)
    service = _text(trace.extra.get("service") or project)
    failed = any(call.status is not ABSENT and call.status != "ok" for call in trace.tool_calls)
    attributes = {key: [value] for key, value in trace.extra.items() if isinstance(value, str | bool | int | float)}
    return PolicyFacts(
        statuses={"error", "unset"} if failed else {"unset"},
        kinds={"AGENT", "TOOL"} if trace.tool_calls else {"AGENT"},
        tools={call.name for call in trace.tool_calls},
        attributes=attributes,
        service=service,
        project=project,
        spans=1 + len(trace.tool_calls),
        duration_ms=trace.latency_ms or 0.0,
    )


def _text(value: object) -> str:
    """A value of an unknown field as text that can be written down: JSON may hold half a surrogate pair."""
    return str(value).encode(errors="replace").decode()
