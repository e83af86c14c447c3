"""How many values a request holds, counted before it is parsed: one of two bytes takes a hundred once it is, so that a
small body could take all memory, and of a compressed one a thousandth has to be sent.

Only bodies that are large enough to hold too many are looked at. Of those the bytes that may begin a value are counted
first, in one pass; only where they are too many, what they are.
"""

import re
from dataclasses import dataclass, field
from functools import cache

from google.protobuf.descriptor import Descriptor
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_serving.receive.layout import OddWireError, after_scalar, read_varint
from observer_serving.receive.status import TOO_LARGE, RefusedError

_GROUP = (3, 4)  # the wire types of its begin and its end
_MIN_VALUE_BYTES = 2  # in protobuf: its tag and its length
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A text, or the rest where its end is missing: else that would be looked for from each quotation mark in it."""
_BEFORE_VALUES = b",[{"


def _too_many(most: int) -> RefusedError:
    return RefusedError(
        TOO_LARGE, f"more than {most} values in one request; send less at once or raise receive.max_request_values"
    )


def check_json(body: bytes, most: int) -> None:
    """
    Raises:
        RefusedError: JSON text with more than `most` commas, objects and arrays.
    """
    if len(body) > most and _count(body, _BEFORE_VALUES) > most and _count(_TEXT.sub(b"", body), _BEFORE_VALUES) > most:
        raise _too_many(most)


def check_protobuf(body: bytes, most: int) -> None:
    """
    Raises:
        RefusedError: an export request with more than `most` elements of repeated fields (attributes, events,
            links, elements of values).
        OddWireError: this is no request.
    """
    if len(body) > _MIN_VALUE_BYTES * most and _count(body, _first_bytes()) > most:
        try:
            _walk(body, most)
        except IndexError:
            raise OddWireError from None


def _count(body: bytes, which: bytes) -> int:
    return len(body) - len(body.translate(None, which))


@dataclass(slots=True)
class _Message:
    """The fields of a message that can hold many values, by number; a text has no message."""

    fields: dict[int, "_Message | None"] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)


@cache
def _schema() -> dict[str, _Message]:
    """All messages of a request by name."""
    known: dict[str, _Message] = {}

    def add(descriptor: Descriptor) -> _Message:
        if descriptor.full_name not in known:
            message = known[descriptor.full_name] = _Message()
            for one in descriptor.fields:
                if one.message_type is not None:
                    message.fields[one.number] = add(one.message_type)
                elif one.is_repeated:
                    message.fields[one.number] = None
                if one.is_repeated:
                    message.repeated.add(one.number)
        return known[descriptor.full_name]

    add(ExportTraceServiceRequest.DESCRIPTOR)
    return known


@cache
def _first_bytes() -> bytes:
    """The first byte of the tag of every repeated field, also of one written in more bytes than it needs."""
    tags = {(number << 3 | 2) & 0x7F for message in _schema().values() for number in message.repeated}
    return bytes(tags | {tag | 0x80 for tag in tags})


def _walk(body: bytes, most: int) -> None:
    """Raises as `check_protobuf`, `IndexError` too where the body ends too early."""
    count = position = 0
    message, stop = _schema()[ExportTraceServiceRequest.DESCRIPTOR.full_name], len(body)
    outside: list[tuple[_Message, int]] = []
    while True:
        if position >= stop:
            if position > stop:
                raise OddWireError
            if not outside:
                return
            message, stop = outside.pop()
            continue
        tag, position = read_varint(body, position)
        wire_type = tag & 7
        if wire_type == 2:
            length, position = read_varint(body, position)
            number = tag >> 3
            if number in message.repeated:
                count += 1
                if count > most:
                    raise _too_many(most)
            inside = message.fields.get(number)
            if inside is None or not length:
                position += length
            else:
                outside.append((message, stop))
                message, stop = inside, position + length
                if stop > outside[-1][1]:
                    raise OddWireError
        elif wire_type not in _GROUP:  # what is in a group counts as if it were in the message
            position = after_scalar(body, position, wire_type)
