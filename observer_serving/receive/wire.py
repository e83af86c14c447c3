"""Cut an OTLP export request into one piece per trace without re-encoding a span.

A piece is itself a valid `ExportTraceServiceRequest`: the envelopes (resource, scope) and the spans of one trace, every
span's bytes exactly as the client sent them. Pieces of one trace that arrive in different requests are joined by plain
concatenation, because protobuf merges repeated fields. Ids come from the parsed message, only positions from the wire.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from observer_serving.receive.layout import (
    RESOURCE_SPANS,
    SCOPE_SPANS,
    SPANS,
    Layout,
    OddWireError,
    Place,
    envelope,
    header,
    lockstep,
    survey,
)

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8
_NO_TRACE = bytes(TRACE_ID_BYTES)
_NO_SPAN = bytes(SPAN_ID_BYTES)

_MAX_REASONS = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """The spans of one trace in one request. `span_ids` is 8 bytes a span, in the order of `data`.

    `root_ended` says that a span without parent is among them and carries an end time.
    """

    trace_id: bytes
    span_ids: bytes
    root_ended: bool
    data: bytes

    @property
    def spans(self) -> int:
        return len(self.span_ids) // SPAN_ID_BYTES


@dataclass(frozen=True, slots=True)
class Cut:
    """The pieces of a request, how many of its spans had to be refused, and what the client should know, in English."""

    pieces: list[Piece]
    spans: int
    rejected: int
    message: str


class _Builder:
    """Collects where a trace's bytes lie; nothing is copied before `piece`."""

    __slots__ = (
        "ids", "parts", "resource", "resource_parts", "root_ended", "scope", "scope_head", "spans", "trace_id",
    )  # fmt: skip

    def __init__(self, trace_id: bytes) -> None:
        self.trace_id = trace_id
        self.ids: list[bytes] = []
        self.root_ended = False
        self.parts: list[bytes | memoryview] = []
        self.resource = self.scope = -1  # the numbers of the open envelopes
        self.resource_parts: list[bytes | memoryview] = []
        self.scope_head = b""
        self.spans: list[bytes | memoryview] = []
        """Those of the open scope."""

    def open(self, resource: int, resource_head: bytes, scope: int, scope_head: bytes) -> None:
        """Put the next spans into these envelopes."""
        self._close_scope()
        if self.resource != resource:
            self._close_resource()
            self.resource = resource
            self.resource_parts = [resource_head]
        self.scope, self.scope_head = scope, scope_head

    def piece(self) -> Piece:
        self._close_scope()
        self._close_resource()
        return Piece(self.trace_id, b"".join(self.ids), self.root_ended, b"".join(self.parts))

    def _close_scope(self) -> None:
        if self.spans:
            size = len(self.scope_head) + sum(map(len, self.spans))
            self.resource_parts += (header(SCOPE_SPANS, size), self.scope_head, *self.spans)
            self.spans = []

    def _close_resource(self) -> None:
        if self.resource_parts:
            size = sum(map(len, self.resource_parts))
            self.parts += (header(RESOURCE_SPANS, size), *self.resource_parts)


def split_ids(ids: bytes | bytearray) -> list[bytes]:
    """Span ids one by one."""
    raw = bytes(ids)
    return [raw[i : i + SPAN_ID_BYTES] for i in range(0, len(raw), SPAN_ID_BYTES)]


def cut(message: ExportTraceServiceRequest, body: bytes, layout: Layout | None = None) -> Cut:
    """Cut the request `body`, parsed as `message`, into pieces; spans with unusable ids are left out and counted.

    A trace id is 16 bytes and a span id 8, neither all zero (the OTLP schema's own rule). `layout` is what `survey`
    gave for this body, if it was asked.
    """
    try:
        return _whole(message, body) or cut_resources(_parsed(message, body, layout or survey(body)))
    except OddWireError:
        message.DiscardUnknownFields()  # where groups and other oddities live
        body = message.SerializeToString()
        return cut_resources(_parsed(message, body, survey(body)))


def _whole(message: ExportTraceServiceRequest, body: bytes) -> Cut | None:
    """The request as one piece, just as it came, if it is nothing but usable spans of one trace."""
    head, resources = envelope(body, 0, len(body), RESOURCE_SPANS)
    if head or len(resources) != len(message.resource_spans):
        return None
    trace_id = None
    ids: list[bytes] = []
    root_ended = False
    for resource_spans in message.resource_spans:
        if not resource_spans.scope_spans:
            return None
        for scope_spans in resource_spans.scope_spans:
            spans = scope_spans.spans
            if not spans:
                return None
            trace_id = spans[0].trace_id if trace_id is None else trace_id
            if spans[-1].trace_id != trace_id:  # of a batch this is seen at once
                return None
            for span in spans:
                if span.trace_id != trace_id:
                    return None
                ids.append(span.span_id)
                root_ended = root_ended or _is_ended_root(span)
    if trace_id is None or not _is_usable(trace_id, _NO_TRACE):
        return None
    if not _are_usable(ids):
        return None
    piece = Piece(trace_id, b"".join(ids), root_ended, body)
    return Cut([piece], len(ids), 0, _in_words(Counter(), len(ids) - len(set(ids))))


def _is_usable(given: bytes, zero: bytes) -> bool:
    return len(given) == len(zero) and given != zero


def _is_ended_root(span: Span) -> bool:
    parent = span.parent_span_id
    return (not parent or parent == _NO_SPAN) and span.end_time_unix_nano != 0


class Scope(Protocol):
    """A scope of a request: `head` are its own fields as on the wire, and its spans are known by their place in it."""

    @property
    def head(self) -> bytes: ...

    @property
    def trace_ids(self) -> list[bytes]: ...

    @property
    def span_ids(self) -> list[bytes]: ...

    def is_ended_root(self, index: int) -> bool: ...

    def between(self, first: int, last: int) -> Sequence[bytes | memoryview]:
        """The bytes of some spans in a row, `last` not among them."""
        ...


class _ParsedScope:
    """A scope of a parsed request, and where it lies on the wire."""

    __slots__ = ("_are_neighbours", "_body", "_places", "_spans", "head", "span_ids", "trace_ids")

    def __init__(self, body: memoryview, head: bytes, places: list[Place], are_neighbours: bool, spans: Any) -> None:
        self.head = head
        self._body, self._places, self._are_neighbours, self._spans = body, places, are_neighbours, list(spans)
        if len(self._spans) != len(places):
            raise OddWireError
        self.trace_ids: list[bytes] = [span.trace_id for span in self._spans]
        self.span_ids: list[bytes] = [span.span_id for span in self._spans]

    def is_ended_root(self, index: int) -> bool:
        return _is_ended_root(self._spans[index])

    def between(self, first: int, last: int) -> Sequence[memoryview]:
        if self._are_neighbours:
            return (self._body[self._places[first][0] : self._places[last - 1][2]],)
        return [self._body[start:stop] for start, _, stop in self._places[first:last]]


def _parsed(
    message: ExportTraceServiceRequest, body: bytes, layout: Layout
) -> Iterator[tuple[bytes, Iterator[_ParsedScope]]]:
    view = memoryview(body)
    for resource_spans, (head, scopes) in lockstep(message.resource_spans, layout):
        yield (
            head,
            (
                _ParsedScope(view, *scope, parsed.spans)
                for parsed, scope in lockstep(resource_spans.scope_spans, scopes)
            ),
        )


def cut_resources(resources: Iterable[tuple[bytes, Iterable[Scope]]]) -> Cut:
    """Cut a request, given as the own fields and the scopes of each of its resources; see `cut`."""
    builders: dict[bytes, _Builder] = {}
    refused: Counter[str] = Counter()
    total = scope_number = 0
    different: set[bytes] = set()
    for resource_number, (resource_head, scopes) in enumerate(resources):
        for scope in scopes:
            scope_number += 1
            span_ids = scope.span_ids
            total += len(span_ids)
            different.update(span_ids)
            ids_are_usable = _are_usable(span_ids)
            first = 0
            for trace_id, run in groupby(scope.trace_ids):
                last = first + len(list(run))
                ids = span_ids[first:last]
                bad = () if ids_are_usable and _is_usable(trace_id, _NO_TRACE) else _unusable(trace_id, ids)
                if len(bad) < len(ids):
                    builder = builders.get(trace_id)
                    if builder is None:
                        builder = builders[trace_id] = _Builder(trace_id)
                    if builder.scope != scope_number:
                        builder.open(resource_number, resource_head, scope_number, scope.head)
                    good = range(first, last) if not bad else [i for i in range(first, last) if i - first not in bad]
                    if not bad:
                        builder.ids += ids
                        builder.spans += scope.between(first, last)
                    else:
                        builder.ids += [span_ids[i] for i in good]
                        builder.spans += [part for i in good for part in scope.between(i, i + 1)]
                    for i in good:
                        if builder.root_ended:
                            break
                        builder.root_ended = scope.is_ended_root(i)
                if bad:
                    refused.update(_refusal(trace_id, ids[i]) for i in bad)
                first = last
    pieces = [builder.piece() for builder in builders.values()]
    repeated = 0
    if len(different) < total:  # within one trace, or in several traces, which is their right
        repeated = sum(len(builder.ids) - len(set(builder.ids)) for builder in builders.values())
    return Cut(pieces, total, refused.total(), _in_words(refused, repeated))


def _are_usable(span_ids: list[bytes]) -> bool:
    return _NO_SPAN not in span_ids and set(map(len, span_ids)) <= {SPAN_ID_BYTES}


def _unusable(trace_id: bytes, span_ids: list[bytes]) -> Collection[int]:
    """Which spans of a trace cannot be told apart by their ids: all of them, when it is the trace's id."""
    if not _is_usable(trace_id, _NO_TRACE):
        return range(len(span_ids))
    if _are_usable(span_ids):
        return ()
    return {i for i, span_id in enumerate(span_ids) if not _is_usable(span_id, _NO_SPAN)}


def patch(message: ExportTraceServiceRequest, body: bytes, changed: Collection[tuple[int, ...]]) -> bytes:
    """The request `body` with some parts of `message`, as it was parsed from it, encoded anew; all other bytes stay.

    Args:
        changed: the places of what changed: `(resource,)` and `(resource, scope)` for an envelope's own fields,
            `(resource, scope, span)` for a span.
    """
    try:
        return _patch(message, body, changed)
    except OddWireError:
        message.DiscardUnknownFields()
        return message.SerializeToString()


def _patch(message: ExportTraceServiceRequest, body: bytes, changed: Collection[tuple[int, ...]]) -> bytes:
    touched = {place[:depth] for place in changed for depth in range(1, len(place) + 1)}
    head, resources = envelope(body, 0, len(body), RESOURCE_SPANS)
    out = [head]
    for r, (resource_spans, (r_field, r_start, r_stop)) in enumerate(lockstep(message.resource_spans, resources)):
        if (r,) not in touched:
            out.append(body[r_field:r_stop])
            continue
        r_head, scopes = envelope(body, r_start, r_stop, SCOPE_SPANS)
        inner = [_own_fields(resource_spans, "scope_spans") if (r,) in changed else r_head]
        for s, (scope_spans, (s_field, s_start, s_stop)) in enumerate(lockstep(resource_spans.scope_spans, scopes)):
            if (r, s) not in touched:
                inner.append(body[s_field:s_stop])
                continue
            s_head, spans = envelope(body, s_start, s_stop, SPANS)
            parts = [_own_fields(scope_spans, "spans") if (r, s) in changed else s_head]
            for i, (span, (field, _, stop)) in enumerate(lockstep(scope_spans.spans, spans)):
                if (r, s, i) in changed:
                    encoded = span.SerializeToString()
                    parts += (header(SPANS, len(encoded)), encoded)
                else:
                    parts.append(body[field:stop])
            inner += (header(SCOPE_SPANS, sum(map(len, parts))), *parts)
        out += (header(RESOURCE_SPANS, sum(map(len, inner))), *inner)
    return b"".join(out)


def _own_fields(envelope: Any, children: str) -> bytes:
    """An envelope without its children, unknown fields included."""
    copy = type(envelope)()
    copy.CopyFrom(envelope)
    copy.ClearField(children)
    return copy.SerializeToString()


def _refusal(trace_id: bytes, span_id: bytes) -> str:
    if len(trace_id) != TRACE_ID_BYTES:
        return f"trace_id has {len(trace_id)} bytes, not 16"
    if trace_id == _NO_TRACE:
        return "trace_id is all zero"
    if len(span_id) != SPAN_ID_BYTES:
        return f"span_id has {len(span_id)} bytes, not 8"
    return "span_id is all zero"


def _in_words(reasons: Counter[str], repeated: int) -> str:
    """The commonest reasons, few enough that the answer stays far below the 4 MiB a client must accept."""
    if not reasons and not repeated:
        return ""
    ranked = reasons.most_common()
    words = [f"{count} span(s) refused: {why}" for why, count in ranked[:_MAX_REASONS]]
    if len(ranked) > _MAX_REASONS:
        words.append("and further reasons")
    if repeated:
        words.append(
            f"{repeated} span(s) have the id of another span of their trace in this request; one of each is kept"
        )
    return "; ".join(words)
