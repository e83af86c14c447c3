"""OTLP/JSON ↔ protobuf, by the rules of the OTLP specification, which are not protobuf's own JSON rules.

`google.protobuf.json_format` reads trace and span ids as base64 (OTLP says hex) and is 20 to 70 times slower than the
binary path. Here one table per message type, made from its descriptor, maps each JSON key to the function that writes
the field as it is on the wire, so that every field of the schema is covered and unknown ones cost one dictionary
look-up.

Rules (opentelemetry-proto, "JSON Protobuf Encoding"): keys are lowerCamelCase; ids are hex in either case; enums are
integers only; 64-bit integers are strings or numbers; `bytesValue` is base64; unknown fields are ignored; null is the
same as absent.
"""

import base64
import binascii
import math
import struct
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
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_MAX_64 = 2**64 - 1
_FIXED32, _FIXED64, _DOUBLE = struct.Struct("<I").pack, struct.Struct("<Q").pack, struct.Struct("<d").pack
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


def json_to_wire(descriptor: Descriptor, data: bytes) -> bytes:
    """The protobuf form of an OTLP message given as JSON text.

    Raises:
        DecodeError: not JSON, or a field has the wrong type; names the field's path.
    """
    try:
        obj = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"not JSON: {error}; send OTLP/JSON as UTF-8") from None
    parts: list[bytes] = []
    _write_fields(parts, descriptor, obj, 0)
    return b"".join(parts)


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

_Write = Callable[[list[bytes], Any, int], int]
"""Appends the wire form of a field to the parts of a body, given its JSON value and the depth of the message it is in;
returns how many bytes that is."""


def _write_fields(parts: list[bytes], descriptor: Descriptor, obj: Any, depth: int) -> int:
    """Append the fields of a message; returns how many bytes they are."""
    if type(obj) is not dict:
        raise DecodeError(f"must be an object, not {_kind(obj)}")
    if depth > MAX_DEPTH:
        raise DecodeError(f"nested deeper than {MAX_DEPTH} messages; send a flatter value")
    writers, choices = _table(descriptor)
    if choices and len(obj) > 1:
        _refuse_second_choice(choices, obj)
    size = 0
    for key, value in obj.items():
        write = writers.get(key)
        if write is not None and value is not None:
            try:
                size += write(parts, value, depth)
            except DecodeError as error:
                raise error.under(key) from None
    return size


@cache
def _table(descriptor: Descriptor) -> tuple[dict[str, _Write], dict[str, str]]:
    """How each JSON key is written, and to which choice ("oneof") those keys belong that exclude each other."""
    writers = {field.json_name: _writer(field) for field in descriptor.fields}
    choices = {f.json_name: f.containing_oneof.name for f in descriptor.fields if f.containing_oneof is not None}
    return writers, choices


def _writer(field: FieldDescriptor) -> _Write:
    if field.message_type is not None:
        tag = _varint(field.number << 3 | 2)
        return partial(_write_messages if field.is_repeated else _write_message, field, tag)
    write = _scalar_writer(field)
    return partial(_write_scalars, write) if field.is_repeated else write


def _write_message(field: FieldDescriptor, tag: bytes, parts: list[bytes], value: Any, depth: int) -> int:
    assert field.message_type is not None
    place = len(parts)
    parts.append(b"")  # its length is known when it is written
    size = _write_fields(parts, field.message_type, value, depth + 1)
    parts[place] = head = tag + _varint(size)
    return len(head) + size


def _write_messages(field: FieldDescriptor, tag: bytes, parts: list[bytes], value: Any, depth: int) -> int:
    if field.message_type is KeyValue.DESCRIPTOR and (texts := _texts(field.number, value)) is not None:
        parts.append(texts)
        return len(texts)
    size = 0
    for index, item in enumerate(_list(value)):
        try:
            size += _write_message(field, tag, parts, item, depth)
        except DecodeError as error:
            raise error.under(f"[{index}]") from None
    return size


def _texts(number: int, items: Any) -> bytes | None:
    """The attributes of field `number` if all of them are texts, as most are, in a fraction of the time that writing
    their fields one by one takes; `None` if one is not."""
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
    return b"".join(parts)  # at once: the memory of the small pieces is that of the next attributes' then


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
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _write_scalars(write: _Write, parts: list[bytes], value: Any, depth: int) -> int:
    size = 0
    for index, item in enumerate(_list(value)):
        try:
            size += write(parts, item, depth)
        except DecodeError as error:
            raise error.under(f"[{index}]") from None
    return size


def _write_bytes(decode: Callable[[Any], bytes], tag: bytes, parts: list[bytes], value: Any, _depth: int) -> int:
    content = decode(value)
    head = tag + _varint(len(content))
    parts += (head, content)
    return len(head) + len(content)


def _write_number(encode: Callable[[Any], bytes], tag: bytes, parts: list[bytes], value: Any, _depth: int) -> int:
    wire = tag + encode(value)
    parts.append(wire)
    return len(wire)


def _refuse_second_choice(choices: dict[str, str], obj: dict[str, Any]) -> None:
    taken: set[str] = set()
    for key, value in obj.items():
        choice = choices.get(key)
        if choice is not None and value is not None:
            if choice in taken:
                raise DecodeError("a value may have one type only; send one of the keys of this object", key)
            taken.add(choice)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise DecodeError(f"must be an array, not {_kind(value)}")
    return value


def _scalar_writer(field: FieldDescriptor) -> _Write:
    kind = field.type
    if kind in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING):
        decode = _text if kind == FieldDescriptor.TYPE_STRING else _hex if field.name in _HEX_FIELDS else _base64
        return partial(_write_bytes, decode, _varint(field.number << 3 | 2))
    wire_type, encode = _number(kind)
    return partial(_write_number, encode, _varint(field.number << 3 | wire_type))


def _number(kind: int) -> tuple[int, Callable[[Any], bytes]]:
    """The wire type of a number, and what brings its JSON value to the wire."""
    if kind == FieldDescriptor.TYPE_BOOL:
        return 0, lambda value: _varint(_bool(value))
    if kind == FieldDescriptor.TYPE_DOUBLE:
        return 1, lambda value: _DOUBLE(_double(value))
    low, high = _INT_RANGES[kind]
    if kind == FieldDescriptor.TYPE_FIXED64:
        return 1, lambda value: _FIXED64(_integer(low, high, value))
    if kind == FieldDescriptor.TYPE_FIXED32:
        return 5, lambda value: _FIXED32(_integer(low, high, value))
    read = _enum if kind == FieldDescriptor.TYPE_ENUM else _integer
    return 0, lambda value: _varint(read(low, high, value) & _MAX_64)  # a negative one as its two's complement


def _text(value: Any) -> bytes:
    if type(value) is not str:
        raise DecodeError(f"must be a string, not {_kind(value)}")
    return value.encode()


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
    text = _text(value).replace(b"-", b"+").replace(b"_", b"/").rstrip(b"=")
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
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
