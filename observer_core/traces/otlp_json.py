"""OTLP/JSON, by the rules of the OTLP specification, which are not protobuf's own JSON rules.

`google.protobuf.json_format` reads trace and span ids as base64 (OTLP says hex) and is 20 to 70 times slower than the
binary path. Here messages are written; `observer_core.traces.otlp_json_read` reads them.

Rules (opentelemetry-proto, "JSON Protobuf Encoding"): keys are lowerCamelCase; ids are hex in either case; enums are
integers only; 64-bit integers are strings or numbers; `bytesValue` is base64; unknown fields are ignored; null is the
same as absent.
"""

import base64
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from observer_core.errors import InputError

HEX_FIELDS = frozenset({"trace_id", "span_id", "parent_span_id"})
_WIDE = frozenset({FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_FIXED64})


class DecodeError(InputError):
    """A body that is not OTLP. `path` names the field, such as `resourceSpans[0].scopeSpans[0].spans[2].traceId`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def under(self, parent: str) -> "DecodeError":
        """The same problem seen from one level further up."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return DecodeError(self.problem, f"{parent}{joint}{self.path}")


class TooManySpansError(InputError):
    """There are more resources, scopes and spans in a request than may be: a span of two bytes takes hundreds once it
    is read."""


def to_json_object(message: Message) -> dict[str, Any]:
    """The OTLP/JSON object of a message: hex ids, 64-bit integers as strings, enums as integers.

    Fields that the installed schema does not know have no JSON form and are left out.
    """
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        encode = _encoder(field)
        out[field.json_name] = [encode(item) for item in value] if field.is_repeated else encode(value)
    return out


def dump_json_message(message: Message) -> bytes:
    """The OTLP/JSON text of a message, on one line."""
    return orjson.dumps(to_json_object(message))


@cache
def _encoder(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return to_json_object
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _to_hex if field.name in HEX_FIELDS else _to_base64
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _from_double
    return str if field.type in _WIDE else _same


def _same(value: Any) -> Any:
    return value


def _to_hex(value: bytes) -> str:
    return value.hex()


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _from_double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
