"""Where the envelopes and spans of an OTLP export request lie on the wire: found without parsing, changed without
re-encoding."""

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

from observer_core.traces.otlp_json import TooManySpansError

# Tags of length-delimited fields: (field << 3) | 2.
RESOURCE_SPANS = 0x0A  # ExportTraceServiceRequest.resource_spans = 1
SCOPE_SPANS = 0x12  # ResourceSpans.scope_spans = 2
SPANS = 0x12  # ScopeSpans.spans = 2
MIN_SPAN_BYTES = 2
"""A span without fields: its tag and its length."""

_T = TypeVar("_T")
Place = tuple[int, int, int]
"""Where a field of a message lies: its tag, the start of its content, its end."""

Scope = tuple[bytes, list[Place], bool]
"""A scope's own fields, where its spans lie, and whether they lie one after the other."""

Layout = list[tuple[bytes, list[Scope]]]
"""Of each resource of a request its own fields and its scopes."""


class OddWireError(Exception):
    """The wire and the parsed message do not line up (an encoding no real client uses)."""


def survey(body: bytes, most: int = sys.maxsize) -> Layout:
    """Where everything lies in a request, which need not have been parsed. A span of two bytes takes hundreds once it
    is, so this is where they are counted.

    Raises:
        TooManySpansError: there are more than `most` resources, scopes and spans.
        OddWireError: it lies oddly, or this is no request; parsing tells.
    """
    layout: Layout = []
    try:
        _, resources = envelope(body, 0, len(body), RESOURCE_SPANS, most)
        most -= len(resources)
        for _, r_start, r_stop in resources:
            resource_head, places = envelope(body, r_start, r_stop, SCOPE_SPANS, most)
            most -= len(places)
            scopes: list[Scope] = []
            for _, s_start, s_stop in places:
                scope_head, spans = envelope(body, s_start, s_stop, SPANS, most)
                most -= len(spans)
                together = bool(spans) and spans[-1][2] - spans[0][0] == s_stop - s_start - len(scope_head)
                scopes.append((scope_head, spans, together))
            layout.append((resource_head, scopes))
    except IndexError:
        raise OddWireError from None
    return layout


def lockstep(messages: Any, places: list[_T]) -> Iterator[tuple[Any, _T]]:
    """Parsed messages beside where they lie.

    Raises:
        OddWireError: they are not as many.
    """
    if len(messages) != len(places):
        raise OddWireError
    return zip(messages, places, strict=True)


def envelope(body: bytes, start: int, stop: int, child_tag: int, most: int = sys.maxsize) -> tuple[bytes, list[Place]]:
    """All bytes of a message that are not its children, and where each child lies; `most` as in `survey`.

    Raises:
        IndexError, OddWireError, TooManySpansError: see `survey`.
    """
    head: list[bytes] = []
    children: list[Place] = []
    position = start
    while position < stop:
        field_start = position
        tag = body[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = read_varint(body, position)
        wire_type = tag & 7
        if wire_type == 2:
            length = body[position]
            if length < 0x80:
                position += 1
            elif body[position + 1] < 0x80:  # most spans
                length = length & 0x7F | body[position + 1] << 7
                position += 2
            else:
                length, position = read_varint(body, position)
            end = position + length
            if tag == child_tag:
                if len(children) >= most:
                    raise TooManySpansError
                children.append((field_start, position, end))
                position = end
                continue
            position = end
        else:
            position = after_scalar(body, position, wire_type)
        head.append(body[field_start:position])
    if position != stop:
        raise OddWireError
    return b"".join(head), children


def after_scalar(body: bytes, position: int, wire_type: int) -> int:
    """Where a number that begins here ends.

    Raises:
        IndexError, OddWireError: there is none; groups too are refused, which are deprecated and never in OTLP.
    """
    if wire_type == 0:
        return read_varint(body, position)[1]
    if wire_type == 5:
        return position + 4
    if wire_type == 1:
        return position + 8
    raise OddWireError


def read_varint(body: bytes, position: int) -> tuple[int, int]:
    """A varint and where it ends.

    Raises:
        IndexError, OddWireError: there is none.
    """
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
        if shift > 63:
            raise OddWireError


def header(tag: int, length: int) -> bytes:
    """Tag and length of a length-delimited field."""
    if length < 0x80:
        return bytes((tag, length))
    if length < 0x4000:
        return bytes((tag, length & 0x7F | 0x80, length >> 7))
    if length < 0x200000:
        return bytes((tag, length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14))
    out = bytearray((tag,))
    while length > 0x7F:
        out.append((length & 0x7F) | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
