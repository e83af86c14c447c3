"""A light view over protobuf spans: attributes are looked up where they lie and copied only when asked for."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from observer_core.traces.tolerant import parse_tolerant

STATUS_WORDS = {Status.STATUS_CODE_UNSET: "unset", Status.STATUS_CODE_OK: "ok", Status.STATUS_CODE_ERROR: "error"}


def python_value(value: AnyValue) -> Any:
    """The Python value of an attribute: bytes as base64 text, arrays as lists, key-value lists as dicts."""
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "array_value":
            return [python_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return {item.key: python_value(item.value) for item in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case _:
            return getattr(value, kind)


class SpanView:
    """One span with its attributes by key.

    Attributes:
        span: the protobuf span, untouched.
        resource: the attributes of its resource by key.
        truncated: whether a JSON text asked for so far was cut short.
    """

    __slots__ = ("_attributes", "resource", "span", "truncated")

    def __init__(self, span: Span, resource: Mapping[str, AnyValue]) -> None:
        self.span = span
        self.resource = resource
        self.truncated = False
        self._attributes = {attribute.key: attribute.value for attribute in span.attributes}

    def __contains__(self, key: str) -> bool:
        return key in self._attributes

    def keys(self) -> Iterator[str]:
        """The attribute keys in the order of the span."""
        return iter(self._attributes)

    def get(self, key: str) -> Any:
        """The attribute's Python value, `None` when absent or empty."""
        value = self._attributes.get(key)
        return None if value is None else python_value(value)

    def word(self, key: str) -> str | None:
        """The attribute when it is a string."""
        value = self._attributes.get(key)
        return value.string_value if value is not None and value.HasField("string_value") else None

    def text(self, key: str) -> str | None:
        """The attribute as text: strings as they are, everything else as JSON; `None` when absent or empty."""
        value = self.get(key)
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def resource_value(self, key: str) -> Any:
        """The Python value of an attribute of the span's resource."""
        value = self.resource.get(key)
        return None if value is None else python_value(value)

    def json(self, key: str) -> Any:
        """The value a JSON text holds (a cut one as far as it goes, what is no JSON as text), or a structured value."""
        return self.parsed(self.get(key))

    def event(self, name: str, key: str) -> Iterator[Any]:
        """The Python value that each event of this name has under `key`, where it has one."""
        for event in self.span.events:
            if event.name == name:
                yield from (python_value(item.value) for item in event.attributes if item.key == key)

    def parsed(self, value: Any) -> Any:
        """A JSON text as its value (a cut one as far as it goes); anything else as it is."""
        if not isinstance(value, str):
            return value
        parsed, truncated = parse_tolerant(value)
        self.truncated |= truncated
        return parsed

    def tree(self, prefix: str) -> dict[str, Any]:
        """Flattened attributes below `prefix` (which ends in a dot) as nested dicts by path segment."""
        root: dict[str, Any] = {}
        for key, value in self._attributes.items():
            if key.startswith(prefix):
                *path, last = key[len(prefix) :].split(".")
                node = root
                for segment in path:
                    child = node.get(segment)
                    if not isinstance(child, dict):
                        child = node[segment] = {}
                    node = child
                node[last] = python_value(value)
        return root

    @property
    def status(self) -> str:
        """`ok`, `error` or `unset`."""
        return STATUS_WORDS.get(self.span.status.code, "unset")

    @property
    def order(self) -> tuple[int, int]:
        """What spans are sorted by: start, then end."""
        return self.span.start_time_unix_nano, self.span.end_time_unix_nano


def count_pair(view: SpanView, first: Sequence[str], second: Sequence[str]) -> tuple[int, int] | None:
    """Two counts, each under the first of its keys that is there; `None` when neither is."""
    found = [next((v for key in keys if isinstance(v := view.get(key), int)), None) for keys in (first, second)]
    return None if found == [None, None] else (found[0] or 0, found[1] or 0)


def in_order(node: Any) -> list[Any]:
    """The values of a `SpanView.tree` node whose keys are indexes, by index; indexes may be missing."""
    if not isinstance(node, dict):
        return []
    return [node[key] for key in sorted((key for key in node if key.isdecimal()), key=int)]


def views(resource_spans: Sequence[ResourceSpans]) -> list[SpanView]:
    """A view of every span, in time order."""
    out: list[SpanView] = []
    for group in resource_spans:
        resource = {attribute.key: attribute.value for attribute in group.resource.attributes}
        out += [SpanView(span, resource) for scope in group.scope_spans for span in scope.spans]
    out.sort(key=lambda view: view.order)
    return out


class SpanTree:
    """Who is whose parent. Missing parents, cycles and shared span ids are normal input and never an error."""

    def __init__(self, spans: Sequence[SpanView]) -> None:
        self.spans = spans
        self._by_id: dict[bytes, SpanView] = {}
        for view in spans:
            self._by_id.setdefault(view.span.span_id, view)
        self._depths: dict[int, int] = {}

    def parent(self, view: SpanView) -> SpanView | None:
        """The parent when it is in the trace."""
        parent_id = view.span.parent_span_id
        return self._by_id.get(parent_id) if parent_id else None

    def ancestors(self, view: SpanView) -> Iterator[SpanView]:
        """Parent, grandparent and so on, each once."""
        seen = {id(view)}
        current = self.parent(view)
        while current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            current = self.parent(current)

    def depth(self, view: SpanView) -> int:
        """How many known ancestors a span has (0 for a root)."""
        path: list[SpanView] = [view]
        for ancestor in self.ancestors(view):
            if id(ancestor) in self._depths:
                break
            path.append(ancestor)
        known = self.parent(path[-1])
        depth = -1 if known is None else self._depths.get(id(known), -1)
        for step in reversed(path):
            depth += 1
            self._depths[id(step)] = depth
        return depth

    @property
    def root(self) -> SpanView | None:
        """The span that carries our attributes: the one root, else the earliest span without a parent in the trace."""
        roots = [view for view in self.spans if not view.span.parent_span_id]
        if len(roots) == 1:
            return roots[0]
        orphans = [view for view in self.spans if self.parent(view) is None]
        return next(iter(orphans or self.spans), None)

    @property
    def complete(self) -> bool:
        """Whether there is exactly one root and every parent named is here."""
        orphans = [view for view in self.spans if self.parent(view) is None]
        return len(orphans) == 1 and not orphans[0].span.parent_span_id
