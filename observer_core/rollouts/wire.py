"""OTLP's protobuf, written by hand: several times faster than filling message objects, and the same bytes on the wire.

Only what our spans use: https://github.com/open-telemetry/opentelemetry-proto, trace.proto and common.proto, version 1.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache

Value = str | bool | int | float
_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")
_64_BITS = (1 << 64) - 1


def varint(number: int) -> bytes:
    """A base-128 integer; negative ones as 64-bit two's complement."""
    number &= _64_BITS
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(tag: bytes, payload: bytes) -> bytes:
    """A length-delimited field; `tag` is field number and wire type."""
    return tag + varint(len(payload)) + payload


@lru_cache(maxsize=4096)
def _key(name: str) -> bytes:
    return field(b"\x0a", name.encode())


def _key_value(name: str, value: Value) -> bytes:
    """A KeyValue with a string, bool, int or double."""
    if isinstance(value, str):
        any_value = field(b"\x0a", value.encode("utf-8", "replace"))
    elif isinstance(value, bool):
        any_value = b"\x10\x01" if value else b"\x10\x00"
    elif isinstance(value, int):
        any_value = b"\x18" + varint(value)
    else:
        any_value = b"\x21" + _DOUBLE.pack(value)
    return _key(name) + field(b"\x12", any_value)


def attributes(values: Mapping[str, Value | None]) -> bytes:
    """A span's attributes (field 9) in order; None is left out."""
    return b"".join(field(b"\x4a", _key_value(name, value)) for name, value in values.items() if value is not None)


@lru_cache(maxsize=512)
def _name(name: str) -> bytes:
    return field(b"\x2a", name.encode()) + b"\x30\x01"  # kind INTERNAL


def span(
    trace_id: bytes,
    span_id: bytes,
    parent_id: bytes | None,
    name: str,
    start_ns: int,
    end_ns: int,
    encoded_attributes: bytes,
    error: str | None = None,
) -> bytes:
    """A Span message; with `error` its status is ERROR."""
    parts = [
        b"\x0a\x10",
        trace_id,
        b"\x12\x08",
        span_id,
        b"\x22\x08" + parent_id if parent_id else b"",
        _name(name),
        b"\x39",
        _FIXED64.pack(start_ns),
        b"\x41",
        _FIXED64.pack(end_ns),
        encoded_attributes,
    ]
    if error is not None:
        message = error.encode("utf-8", "replace")
        parts.append(field(b"\x7a", field(b"\x12", message) + b"\x18\x02"))  # code ERROR
    return b"".join(parts)


def export_request(resource: Mapping[str, Value], scope: str, version: str, spans: list[bytes]) -> bytes:
    """An ExportTraceServiceRequest of one resource and one scope."""
    resource_message = b"".join(field(b"\x0a", _key_value(name, value)) for name, value in resource.items())
    scope_message = field(b"\x0a", scope.encode()) + field(b"\x12", version.encode())
    scope_spans = field(b"\x0a", scope_message) + b"".join(field(b"\x12", s) for s in spans)
    return field(b"\x0a", field(b"\x0a", resource_message) + field(b"\x12", scope_spans))
