"""Cut an OTLP export request into one piece per trace without re-encoding a span.

A piece is itself a valid `ExportTraceServiceRequest`: the envelopes (resource, scope) and the spans of one trace, every
span's bytes exactly as the client sent them. Pieces of one trace that arrive in different requests are joined by plain
concatenation, because protobuf merges repeated fields. Ids come from the parsed message, only positions from the wire.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8
_NO_TRACE = bytes(TRACE_ID_BYTES)
_NO_SPAN = bytes(SPAN_ID_BYTES)

# Tags of length-delimited fields: (field << 3) | 2.
_RESOURCE_SPANS = 0x0A  # ExportTraceServiceRequest.resource_spans = 1
_SCOPE_SPANS = 0x12  # ResourceSpans.scope_spans = 2
_SPANS = 0x12  # ScopeSpans.spans = 2
_MAX_REASONS = 5


class _OddWireError(Exception):
    """The wire and the parsed message do not line up (an encoding no real client uses)."""


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
    """The pieces of a request, and what had to be refused: how many spans and, in English, why."""

    pieces: list[Piece]
    spans: int
    rejected: int
    reasons: str


class _Builder:
    """Collects one trace's bytes, re-opening resource and scope envelopes only when they change."""

    __slots__ = ("data", "ids", "resource", "resource_parts", "root_ended", "scope", "scope_parts")

    def __init__(self) -> None:
        self.ids = bytearray()
        self.root_ended = False
        self.data = bytearray()
        self.resource = self.scope = -1
        self.resource_parts: list[bytes] = []
        self.scope_parts: list[bytes] = []

    def close_scope(self) -> None:
        if self.scope_parts:
            body = b"".join(self.scope_parts)
            self.resource_parts += (b"\x12", _varint(len(body)), body)
            self.scope_parts = []
        self.scope = -1

    def close_resource(self) -> None:
        self.close_scope()
        if self.resource_parts:
            body = b"".join(self.resource_parts)
            self.data += b"\x0a" + _varint(len(body)) + body
            self.resource_parts = []
        self.resource = -1


def cut(message: ExportTraceServiceRequest, body: bytes) -> Cut:
    """Cut the request `body`, parsed as `message`, into pieces; spans with unusable ids are left out and counted.

    A trace id is 16 bytes and a span id 8, neither all zero (the OTLP schema's own rule).
    """
    try:
        return _cut(message, body)
    except _OddWireError:
        message.DiscardUnknownFields()  # where groups and other oddities live
        return _cut(message, message.SerializeToString())


def _cut(message: ExportTraceServiceRequest, body: bytes) -> Cut:
    builders: dict[bytes, _Builder] = {}
    reasons: dict[str, int] = {}
    total = rejected = 0
    resource_number = scope_number = 0
    for resource_spans, (r_start, r_end) in _lockstep(message.resource_spans, _children(body, 0, len(body), 0x0A)):
        resource_number += 1
        r_head, r_children = _envelope(body, r_start, r_end, _SCOPE_SPANS)
        for scope_spans, (s_start, s_end) in _lockstep(resource_spans.scope_spans, r_children):
            scope_number += 1
            s_head, s_children = _envelope(body, s_start, s_end, _SPANS)
            spans = scope_spans.spans
            if len(spans) != len(s_children):
                raise _OddWireError
            total += len(spans)
            for span, (start, end) in zip(spans, s_children, strict=True):
                trace_id, span_id = span.trace_id, span.span_id
                if (
                    len(trace_id) != TRACE_ID_BYTES
                    or len(span_id) != SPAN_ID_BYTES
                    or trace_id == _NO_TRACE
                    or span_id == _NO_SPAN
                ):
                    rejected += 1
                    why = _refusal(trace_id, span_id)
                    reasons[why] = reasons.get(why, 0) + 1
                    continue
                builder = builders.get(trace_id)
                if builder is None:
                    builder = builders[trace_id] = _Builder()
                if builder.scope != scope_number:
                    if builder.resource != resource_number:
                        builder.close_resource()
                        builder.resource = resource_number
                        builder.resource_parts.append(r_head)
                    else:
                        builder.close_scope()
                    builder.scope = scope_number
                    builder.scope_parts.append(s_head)
                builder.ids += span_id
                parent = span.parent_span_id
                if (not parent or parent == _NO_SPAN) and span.end_time_unix_nano:
                    builder.root_ended = True
                builder.scope_parts += (b"\x12", _varint(end - start), body[start:end])
    pieces = []
    for trace_id, builder in builders.items():
        builder.close_resource()
        pieces.append(Piece(trace_id, bytes(builder.ids), builder.root_ended, bytes(builder.data)))
    return Cut(pieces, total, rejected, _in_words(reasons))


def _refusal(trace_id: bytes, span_id: bytes) -> str:
    if len(trace_id) != TRACE_ID_BYTES:
        return f"trace_id has {len(trace_id)} bytes, not 16"
    if trace_id == _NO_TRACE:
        return "trace_id is all zero"
    if len(span_id) != SPAN_ID_BYTES:
        return f"span_id has {len(span_id)} bytes, not 8"
    return "span_id is all zero"


def _in_words(reasons: dict[str, int]) -> str:
    """The commonest reasons, few enough that the answer stays far below the 4 MiB a client must accept."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    words = [f"{count} span(s) refused: {why}" for why, count in ranked[:_MAX_REASONS]]
    if len(ranked) > _MAX_REASONS:
        words.append("and further reasons")
    return "; ".join(words)


def _lockstep(messages, positions: list[tuple[int, int]]) -> Iterator:
    if len(messages) != len(positions):
        raise _OddWireError
    return zip(messages, positions, strict=True)


def _children(body: bytes, start: int, end: int, tag: int) -> list[tuple[int, int]]:
    return _envelope(body, start, end, tag)[1]


def _envelope(body: bytes, start: int, end: int, child_tag: int) -> tuple[bytes, list[tuple[int, int]]]:
    """All bytes of a message that are not its children, and each child's (start, end)."""
    head: list[bytes] = []
    children: list[tuple[int, int]] = []
    position = start
    while position < end:
        field_start = position
        tag, position = _read_varint(body, position)
        wire_type = tag & 7
        if wire_type == 2:
            length, position = _read_varint(body, position)
            stop = position + length
            if tag == child_tag:
                children.append((position, stop))
                position = stop
                continue
            position = stop
        elif wire_type == 0:
            _, position = _read_varint(body, position)
        elif wire_type == 5:
            position += 4
        elif wire_type == 1:
            position += 8
        else:  # groups: deprecated, never in OTLP
            raise _OddWireError
        head.append(body[field_start:position])
    if position != end:
        raise _OddWireError
    return b"".join(head), children


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    byte = body[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
