"""The fields of OTLP messages, as msgspec reads them from JSON (`observer_core.traces.otlp_schema`), in protobuf's wire
form, by the rules in `observer_core.traces.otlp_json`: one table per message type, made from its descriptor, has the
function that writes each field."""

import base64
import binascii
import math
import struct
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from msgspec.structs import astuple

from observer_core.traces.otlp_json import HEX_FIELDS, DecodeError
from observer_core.traces.otlp_schema import AnyValue, KeyValue, OtlpMessage

MAX_DEPTH = 90
"""Deepest message nesting taken: protobuf's own parser refuses 100, and what is decoded here is parsed again later."""

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
_FIXED32, _DOUBLE = struct.Struct("<I").pack, struct.Struct("<d").pack
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_Write = Callable[[list[bytes], Any, int], int]
"""Appends the wire form of a field to the parts of a body, given its JSON value and the depth of the message it is in;
returns how many bytes that is."""


def write_fields(parts: list[bytes], message: OtlpMessage, depth: int) -> int:
    """Append the fields of a message; returns how many bytes they are."""
    if depth > MAX_DEPTH:
        raise DecodeError(f"nested deeper than {MAX_DEPTH} messages; send a flatter value")
    kind = type(message)
    names, writers = _table(kind)
    values = astuple(message)
    if kind is AnyValue and len(values) - values.count(None) > 1:
        second = [name for name, value in zip(names, values, strict=True) if value is not None][1]
        raise DecodeError("a value may have one type only; send one of the keys of this object", second)
    size = place = 0
    try:
        for place, value in enumerate(values):
            if value is not None:
                size += writers[place](parts, value, depth)
    except DecodeError as error:
        raise error.under(names[place]) from None
    return size


@cache
def _table(kind: type[OtlpMessage]) -> tuple[list[str], list[_Write]]:
    """The JSON name of each field, and how it is written, in the order of the message's fields."""
    fields = [kind.descriptor.fields_by_name[name] for name in kind.__struct_fields__]
    return [field.json_name for field in fields], [_writer(field) for field in fields]


def _writer(field: FieldDescriptor) -> _Write:
    if field.message_type is KeyValue.descriptor and field.is_repeated:
        return partial(_write_attributes, _tag(field, 2))
    write = _scalar_writer(field) if field.message_type is None else partial(_write_message, _tag(field, 2))
    return partial(_write_each, write) if field.is_repeated else write


def _tag(field: FieldDescriptor, wire_type: int) -> bytes:
    return varint(field.number << 3 | wire_type)


def _write_message(tag: bytes, parts: list[bytes], message: OtlpMessage, depth: int) -> int:
    place = len(parts)
    parts.append(b"")  # its length is known when it is written
    size = write_fields(parts, message, depth + 1)
    parts[place] = head = tag + varint(size)
    return len(head) + size


def _write_each(write: _Write, parts: list[bytes], items: Iterable[Any], depth: int) -> int:
    size = 0
    for index, item in enumerate(items):
        try:
            size += write(parts, item, depth)
        except DecodeError as error:
            raise error.under(f"[{index}]") from None
    return size


def _write_attributes(tag: bytes, parts: list[bytes], items: list[KeyValue], depth: int) -> int:
    """Attributes that are texts, as most are, take a fraction of the time that writing their fields one by one does."""
    varints, text_heads = _heads()
    size = 0
    for index, item in enumerate(items):
        key, value = item.key, item.value
        if (
            key is not None and len(key) < _SHORT and value is not None and (text := value.string_value) is not None
            and item.key_strindex is value.bool_value is value.int_value is value.double_value is None
            and value.array_value is value.kvlist_value is value.bytes_value is value.string_value_strindex is None
        ):  # fmt: skip
            text = text.encode()
            if len(text) < len(text_heads):
                name, text_head = _key(key), text_heads[len(text)]
                inside = len(name) + len(text_head) + len(text)
                inside_size = varints[inside]
                parts += (tag, inside_size, name, text_head, text)
                size += len(tag) + len(inside_size) + inside
                continue
        try:
            size += _write_message(tag, parts, item, depth)
        except DecodeError as error:
            raise error.under(f"[{index}]") from None
    return size


_SHORT = 128
"""Characters of a key that is worth remembering."""


@lru_cache(maxsize=1024)
def _key(key: str) -> bytes:
    """`KeyValue.key`: there are many attributes and few keys."""
    name = key.encode()
    return b"\x0a" + varint(len(name)) + name


@cache
def _heads() -> tuple[list[bytes], list[bytes]]:
    """Every varint of one or two bytes, and what stands before the text of an attribute, by the text's size: to make
    these anew is half of what attributes cost, and sizes differ too much for a cache of recent ones. An attribute of
    the longest such text and a short key has a size of two bytes too."""
    varints = [varint(size) for size in range(1 << 14)]
    texts = [
        b"\x12" + varints[1 + len(varints[size]) + size] + b"\x0a" + varints[size]  # KeyValue.value, .string_value
        for size in range((1 << 14) - 5 * _SHORT)
    ]
    return varints, texts


def varint(value: int) -> bytes:
    """A protobuf varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _scalar_writer(field: FieldDescriptor) -> _Write:
    kind = field.type
    if kind == FieldDescriptor.TYPE_STRING:
        return _bytes_writer(_tag(field, 2), str.encode, "text")
    if kind == FieldDescriptor.TYPE_BYTES and field.name in HEX_FIELDS:
        return _bytes_writer(_tag(field, 2), binascii.unhexlify, "hex digits (OTLP/JSON has no base64 ids)")
    if kind == FieldDescriptor.TYPE_BYTES:
        return _bytes_writer(_tag(field, 2), _from_base64, "base64")
    if kind == FieldDescriptor.TYPE_BOOL:
        return _number_writer(_tag(field, 0), varint)
    if kind == FieldDescriptor.TYPE_DOUBLE:
        return _number_writer(_tag(field, 1), lambda value: _DOUBLE(_double(value)))
    read = partial(_enum if kind == FieldDescriptor.TYPE_ENUM else _integer, *_INT_RANGES[kind])
    if kind == FieldDescriptor.TYPE_FIXED64:
        return _number_writer(_tag(field, 1), fixed64)
    if kind == FieldDescriptor.TYPE_FIXED32:
        return _number_writer(_tag(field, 5), lambda value: _FIXED32(read(value)))
    return _number_writer(_tag(field, 0), lambda value: varint(read(value) & _MAX_64))  # a negative one in 64 bits


def _bytes_writer(tag: bytes, decode: Callable[[str], bytes], what: str) -> _Write:
    short = [tag + size for size in _ONE_BYTE]

    def write(parts: list[bytes], value: str, _depth: int) -> int:
        try:
            content = decode(value)
        except ValueError:
            raise DecodeError(f"must be {what}, not {value[:40]!r}") from None
        size = len(content)
        head = short[size] if size < len(short) else tag + varint(size)
        parts += (head, content)
        return len(head) + size

    return write


def _number_writer(tag: bytes, encode: Callable[[Any], bytes]) -> _Write:
    def write(parts: list[bytes], value: Any, _depth: int) -> int:
        wire = encode(value)
        parts += (tag, wire)
        return len(tag) + len(wire)

    return write


def _from_base64(value: str) -> bytes:
    text = value.encode().replace(b"-", b"+").replace(b"_", b"/").rstrip(b"=")
    return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)


def _integer(low: int, high: int, value: int | float | str) -> int:
    if isinstance(value, str):
        digits = value if value.isdigit() else value.removeprefix("-")
        if not (digits.isdigit() and digits.isascii() and len(digits) <= 20):
            raise DecodeError(f"must be an integer, not {value[:40]!r}")
        value = int(value)
    # Integers beyond 64 bits may come as rounded floats: strict bounds, so that none is bent into range.
    elif isinstance(value, float) and value.is_integer() and -(2**63) < value < 2**64:
        value = int(value)
    if isinstance(value, float) or not low <= value <= high:
        raise DecodeError(f"must be an integer from {low} to {high}, not {value!r}")
    return value


def fixed64(value: int | float | str) -> bytes:
    try:
        if isinstance(value, str) and value.isdigit() and value.isascii() and len(value) <= 20:
            return int(value).to_bytes(8, "little")
    except OverflowError:
        pass
    return _integer(0, _MAX_64, value).to_bytes(8, "little")


def _enum(low: int, high: int, value: int | float | str) -> int:
    if not isinstance(value, int):
        raise DecodeError(f"must be an integer (OTLP/JSON has no enum names), not {value!r:.40}")
    return _integer(low, high, value)


def _double(value: int | float | str) -> float:
    if not isinstance(value, str):
        try:
            return float(value)
        except OverflowError:
            raise DecodeError(f"must be a number that a double can hold, not {str(value)[:40]}...") from None
    if value in _NON_FINITE:
        return _NON_FINITE[value]
    try:
        number = float(value)
    except ValueError:
        number = math.inf
    # "inf", "1_0", " 1" and digits of other scripts are Python's, not JSON's.
    if math.isfinite(number) and "_" not in value and value.strip() == value and value.isascii():
        return number
    raise DecodeError(f'must be a number, "NaN", "Infinity" or "-Infinity", not {value[:40]!r}')
