"""OTLP/JSON to protobuf's wire form, by the rules in `observer_core.traces.otlp_json`.

msgspec reads the text, span by span, into the schema's own messages (`observer_core.traces.otlp_schema`);
`observer_core.traces.otlp_json_fields` writes their fields.
"""

import binascii
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from observer_core.traces.otlp_json import DecodeError, TooManySpansError
from observer_core.traces.otlp_json_fields import MAX_DEPTH, fixed64, varint, write_fields
from observer_core.traces.otlp_schema import ExportRequest, OtlpMessage, ScopeSpans, Span

_M = TypeVar("_M", bound=OtlpMessage)


class WireScope:
    """A scope of a request, ready for the wire: its own fields (`head`), and its spans, each with tag and length."""

    __slots__ = ("_are_ended_roots", "_spans", "head", "span_ids", "trace_ids")

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.trace_ids: list[bytes] = []
        self.span_ids: list[bytes] = []
        self._spans: list[bytes] = []
        self._are_ended_roots: list[bool] = []

    def add(self, text: msgspec.Raw) -> None:
        """Put a span in, given as JSON.

        Raises:
            DecodeError: see `json_to_wire`.
        """
        span = _read(Span, text)
        own = [_SPAN_TAG, b""]
        own[1] = varint(write_fields(own, span, 3))
        self._spans.append(b"".join(own))  # at once: the memory of the small pieces is that of the next span's then
        self.trace_ids.append(binascii.unhexlify(span.trace_id or ""))
        self.span_ids.append(binascii.unhexlify(span.span_id or ""))
        end = span.end_time_unix_nano
        self._are_ended_roots.append(
            (not span.parent_span_id or span.parent_span_id == _NO_SPAN)
            and end is not None and fixed64(end) != _ZERO
        )  # fmt: skip

    def is_ended_root(self, index: int) -> bool:
        return self._are_ended_roots[index]

    def between(self, first: int, last: int) -> list[bytes]:
        """The bytes of some spans in a row, `last` not among them."""
        return self._spans[first:last]

    @property
    def wire(self) -> bytes:
        """All of it, without tag and length."""
        return b"".join((self.head, *self._spans))


class WireResource(NamedTuple):
    """A resource of a request, ready for the wire: its own fields, and its scopes."""

    head: bytes
    scopes: list[WireScope]

    @property
    def wire(self) -> bytes:
        """All of it, without tag and length."""
        return b"".join((self.head, *(_delimited(_SCOPE_TAG, scope.wire) for scope in self.scopes)))


_RESOURCE_TAG, _SCOPE_TAG, _SPAN_TAG = b"\x0a", b"\x12", b"\x12"
"""ExportTraceServiceRequest.resource_spans = 1, ResourceSpans.scope_spans = 2, ScopeSpans.spans = 2."""
_NO_SPAN = "0" * 16
_ZERO = bytes(8)


def json_to_wire(data: bytes, most: int = sys.maxsize) -> bytes:
    """The protobuf form of an export request given as JSON text; raises as `json_to_resources`."""
    resources = json_to_resources(data, most)
    return b"".join(_delimited(_RESOURCE_TAG, resource.wire) for resource in resources)


def json_to_resources(data: bytes, most: int = sys.maxsize) -> list[WireResource]:
    """What an export request given as JSON text holds, in its protobuf form.

    Raises:
        DecodeError: not JSON, or a field has the wrong type; names the field's path.
        TooManySpansError: there are more than `most` resources, scopes and spans.
    """
    request = _read(ExportRequest, data)
    if _count(request) > most:
        raise TooManySpansError
    resources: list[WireResource] = []
    for r, resource in enumerate(request.resource_spans or ()):
        with _named(f"resourceSpans[{r}]"):
            scopes, resource.scope_spans = resource.scope_spans or (), None
            wire = WireResource(_wire(resource, 1), [])
            for s, scope in enumerate(scopes):
                with _named(f"scopeSpans[{s}]"):
                    wire.scopes.append(_wire_scope(scope))
            resources.append(wire)
    return resources


def _wire_scope(scope: ScopeSpans) -> WireScope:
    spans, scope.spans = scope.spans or (), None
    wire = WireScope(_wire(scope, 2))
    for index, span in enumerate(spans):
        try:
            wire.add(span)
        except DecodeError as error:
            raise error.under(f"spans[{index}]") from None
    return wire


@contextmanager
def _named(parent: str) -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        raise error.under(parent) from None


def _wire(message: OtlpMessage, depth: int) -> bytes:
    parts: list[bytes] = []
    write_fields(parts, message, depth)
    return b"".join(parts)


def _delimited(tag: bytes, content: bytes) -> bytes:
    return b"".join((tag, varint(len(content)), content))


def _count(request: ExportRequest) -> int:
    resources = request.resource_spans or ()
    scopes = [scope for resource in resources for scope in resource.scope_spans or ()]
    return len(resources) + len(scopes) + sum(len(scope.spans or ()) for scope in scopes)


_PROBLEM = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<given>\w+)`")
_KINDS = {
    "object": "an object", "array": "an array", "str": "a string", "bool": "true or false",
    "int": "a number", "float": "a number", "null": "null",
}  # fmt: skip
"""In our words what msgspec expected, by the first of the types it names, or got."""


def _read(kind: type[_M], text: bytes | msgspec.Raw) -> _M:
    """
    Raises:
        DecodeError: see `json_to_wire`.
    """
    try:
        return _decoder(kind).decode(text)
    except msgspec.ValidationError as error:
        raise _explained(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"not JSON: {error}; send OTLP/JSON as UTF-8") from None
    except RecursionError:
        raise DecodeError(f"nested deeper than {MAX_DEPTH} messages; send a flatter value") from None


@cache
def _decoder(kind: type[OtlpMessage]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _explained(error: msgspec.ValidationError) -> DecodeError:
    """What msgspec says of a field, in the words of the other problems."""
    problem, _, path = str(error).partition(" - at `$")
    told = _PROBLEM.fullmatch(problem)
    if told is not None:
        expected = _KINDS[told["expected"].split(" ")[0]]
        problem = f"must be {expected}, not {'a boolean' if told['given'] == 'bool' else _KINDS[told['given']]}"
    return DecodeError(problem, path.removesuffix("`").removeprefix("."))
