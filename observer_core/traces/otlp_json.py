"""OTLP/JSON ↔ protobuf, by the rules of the OTLP specification, which are not protobuf's own JSON rules.

`google.protobuf.json_format` reads trace and span ids as base64 (OTLP says hex) and is 20 to 70 times slower than the
binary path. Here one table per message type, made from its descriptor, maps each JSON key to the function that sets
the field, so that every field of the schema is covered and unknown ones cost one dictionary look-up.

Rules (opentelemetry-proto, "JSON Protobuf Encoding"): keys are lowerCamelCase; ids are hex in either case; enums are
integers only; 64-bit integers are strings or numbers; `bytesValue` is base64; unknown fields are ignored; null is the
same as absent.
"""

import base64
import binascii
import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from observer_core.errors import InputError

MAX_DEPTH = 90
"""Deepest message nesting taken: protobuf's own parser refuses 100, and what is decoded here is parsed again later."""

_HEX_FIELDS = frozenset({"trace_id", "span_id", "parent_span_id"})
_INT_RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
}
_WIDE = frozenset({FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_FIXED64})
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


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


def parse_json_into(message: Message, data: bytes) -> None:
    """Fill an empty OTLP message from JSON text.

    Raises:
        DecodeError: not JSON, or a field has the wrong type; names the field's path.
    """
    try:
        obj = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"not JSON: {error}; send OTLP/JSON as UTF-8") from None
    _fill(message, obj, 0)


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


# -- decoding ----------------------------------------------------------------------------------------------------------

_Setter = Callable[[Message, Any, int], None]


def _fill(message: Message, obj: Any, depth: int) -> None:
    if type(obj) is not dict:
        raise DecodeError(f"must be an object, not {_kind(obj)}")
    if depth > MAX_DEPTH:
        raise DecodeError(f"nested deeper than {MAX_DEPTH} messages; send a flatter value")
    setters = _setters(message.DESCRIPTOR)
    for key, value in obj.items():
        setter = setters.get(key)
        if setter is not None and value is not None:
            try:
                setter(message, value, depth)
            except DecodeError as error:
                raise error.under(key) from None


@cache
def _setters(descriptor: Descriptor) -> dict[str, _Setter]:
    return {field.json_name: _setter(field) for field in descriptor.fields}


def _setter(field: FieldDescriptor) -> _Setter:
    if field.message_type is not None:
        return partial(_set_messages if field.is_repeated else _set_message, field)
    if field.is_repeated:
        return partial(_set_scalars, field, _decoder(field))
    if field.containing_oneof is not None:
        return partial(_set_choice, field, _decoder(field))
    return partial(_set_scalar, field.name, _decoder(field))


def _set_message(field: FieldDescriptor, message: Message, value: Any, depth: int) -> None:
    _refuse_second_choice(field, message)
    child = getattr(message, field.name)
    child.SetInParent()
    _fill(child, value, depth + 1)


def _set_messages(field: FieldDescriptor, message: Message, value: Any, depth: int) -> None:
    if field.message_type is KeyValue.DESCRIPTOR and (wire := _plain_attributes(field.number, value)) is not None:
        message.MergeFromString(wire)
        return
    add = getattr(message, field.name).add
    for index, item in enumerate(_list(value)):
        try:
            _fill(add(), item, depth + 1)
        except DecodeError as error:
            raise error.under(f"[{index}]") from None


def _plain_attributes(number: int, items: Any) -> bytes | None:
    """The wire form of attributes in field `number`, if all of them are texts, as most are: one call of protobuf's
    parser takes a fraction of the time that setting them one by one does."""
    if type(items) is not list:
        return None
    parts: list[bytes] = []
    for item in items:
        try:
            key, value = item["key"], item["value"]
            text = value["stringValue"]
        except (KeyError, TypeError):
            return None
        if len(item) != 2 or len(value) != 1 or type(key) is not str or type(text) is not str:
            return None
        name, content = key.encode(), text.encode()
        before, between = _around_text(number, len(name), len(content))
        parts += (before, name, between, content)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _around_text(number: int, key_size: int, text_size: int) -> tuple[bytes, bytes]:
    """What stands before the key and before the text of a `KeyValue` in field `number`, for these sizes."""
    text = b"\x0a" + _varint(text_size)  # AnyValue.string_value = 1
    value = b"\x12" + _varint(len(text) + text_size) + text  # KeyValue.value = 2
    key = b"\x0a" + _varint(key_size)  # KeyValue.key = 1
    size = len(key) + key_size + len(value) + text_size
    return _varint(number << 3 | 2) + _varint(size) + key, value


def _varint(value: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _set_scalar(name: str, decode: Callable[[Any], Any], message: Message, value: Any, _depth: int) -> None:
    setattr(message, name, decode(value))


def _set_choice(
    field: FieldDescriptor, decode: Callable[[Any], Any], message: Message, value: Any, _depth: int
) -> None:
    _refuse_second_choice(field, message)
    setattr(message, field.name, decode(value))


def _set_scalars(
    field: FieldDescriptor, decode: Callable[[Any], Any], message: Message, value: Any, _depth: int
) -> None:
    target = getattr(message, field.name)
    for index, item in enumerate(_list(value)):
        try:
            target.append(decode(item))
        except DecodeError as error:
            raise error.under(f"[{index}]") from None


def _refuse_second_choice(field: FieldDescriptor, message: Message) -> None:
    if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name) is not None:
        raise DecodeError("a value may have one type only; send one of the keys of this object")


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise DecodeError(f"must be an array, not {_kind(value)}")
    return value


def _decoder(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.type in _INT_RANGES:
        low, high = _INT_RANGES[field.type]
        return partial(_enum if field.type == FieldDescriptor.TYPE_ENUM else _integer, low, high)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _hex if field.name in _HEX_FIELDS else _base64
    return {
        FieldDescriptor.TYPE_STRING: _string,
        FieldDescriptor.TYPE_BOOL: _bool,
        FieldDescriptor.TYPE_DOUBLE: _double,
    }[field.type]


def _string(value: Any) -> str:
    if type(value) is not str:
        raise DecodeError(f"must be a string, not {_kind(value)}")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise DecodeError(f"must be true or false, not {_kind(value)}")
    return value


def _integer(low: int, high: int, value: Any) -> int:
    kind = type(value)
    if kind is str:
        digits = value[1:] if value.startswith("-") else value
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise DecodeError(f"must be an integer, not {value[:40]!r}")
        value = int(value)
    elif kind is float:
        # orjson reads integers beyond 64 bits as rounded floats: strict bounds, so that none is bent into range.
        if not (value.is_integer() and -(2**63) < value < 2**64):
            raise DecodeError(f"must be an integer from {low} to {high}, not {value!r}")
        value = int(value)
    elif kind is not int:
        raise DecodeError(f"must be an integer, not {_kind(value)}")
    if not low <= value <= high:
        raise DecodeError(f"must be from {low} to {high}, not {value}")
    return value


def _enum(low: int, high: int, value: Any) -> int:
    if type(value) is not int:
        raise DecodeError(f"must be an integer (OTLP/JSON has no enum names), not {value!r:.40}")
    return _integer(low, high, value)


def _double(value: Any) -> float:
    kind = type(value)
    if kind is float or kind is int:
        return float(value)
    if kind is str:
        if value in _NON_FINITE:
            return _NON_FINITE[value]
        try:
            number = float(value)
        except ValueError:
            number = math.inf
        # "inf", "1_0" and " 1" are Python's, not JSON's.
        if math.isfinite(number) and "_" not in value and value.strip() == value:
            return number
        raise DecodeError(f'must be a number, "NaN", "Infinity" or "-Infinity", not {value[:40]!r}')
    raise DecodeError(f"must be a number, not {_kind(value)}")


def _hex(value: Any) -> bytes:
    if type(value) is not str:
        raise DecodeError(f"must be a string of hex digits, not {_kind(value)}")
    try:
        return binascii.unhexlify(value)
    except ValueError:
        raise DecodeError(f"must be hex digits (OTLP/JSON has no base64 ids), not {value[:40]!r}") from None


def _base64(value: Any) -> bytes:
    text = _string(value).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise DecodeError(f"must be base64, not {value[:40]!r}") from None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a number")


# -- encoding ----------------------------------------------------------------------------------------------------------


@cache
def _encoder(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return to_json_object
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _to_hex if field.name in _HEX_FIELDS else _to_base64
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
