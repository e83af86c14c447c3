"""Redaction: what must not be written down is replaced before the log, and so before spool, scorers and back ends.

Patterns are searched in every text and number of a span (values however deep, keys, names, status messages, events,
links, resource and its entities, scope, schema URLs) and of a JSON trace, but for the trace's own figures such as
`latency_ms`; attributes are told by name. A number with a hit is replaced whole. Fields that the OTLP schema does not
know cannot be searched and are left out. Spans without a hit keep their bytes. What was replaced is counted by rule,
never stored. Text inside JSON text is searched as it reads, `\\u0040` as `@`.
"""

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from observer_core.traces.jsonl import parse_json
from observer_core.traces.trace import NUMBER_FIELDS
from observer_serving.buffer.protocol import Logged
from observer_serving.buffer.received import JsonTrace, Received
from observer_serving.config import RedactSettings
from observer_serving.metrics import Metrics
from observer_serving.receive.wire import patch

_ESCAPE = re.compile(r"((?:\\u[dD][89abAB][0-9a-fA-F]{2})?\\u[0-9a-fA-F]{4}|\\/)")


class Redactor:
    """Replaces what the settings name; may be used from any thread."""

    def __init__(self, settings: RedactSettings, metrics: Metrics) -> None:
        self._patterns = [(name, re.compile(pattern)) for name, pattern in settings.patterns.items()]
        self._names = [(name, re.compile(fnmatch.translate(name))) for name in settings.attributes]
        self._replacement = settings.replacement
        self._metrics = metrics

    def spans(self, message: ExportTraceServiceRequest, body: bytes) -> bytes:
        """The request `body`, parsed as `message`, redacted; the message is changed too."""
        work = _Pass(self)
        size = message.ByteSize()
        message.DiscardUnknownFields()
        has_unknown = message.ByteSize() != size
        changed: set[tuple[int, ...]] = set()
        for r, resource_spans in enumerate(message.resource_spans):
            if work.resource(resource_spans.resource) | work.fields(resource_spans, "schema_url"):
                changed.add((r,))
            for s, scope_spans in enumerate(resource_spans.scope_spans):
                scope = scope_spans.scope
                if (
                    work.fields(scope, "name", "version")
                    | work.attributes(scope.attributes)
                    | work.fields(scope_spans, "schema_url")
                ):
                    changed.add((r, s))
                changed.update((r, s, i) for i, span in enumerate(scope_spans.spans) if work.span(span))
        self._count(work)
        if has_unknown:
            return message.SerializeToString()
        return patch(message, body, changed) if changed else body

    def trace(self, data: bytes) -> bytes:
        """A trace's JSON, redacted; what is no JSON comes back as it is, for its reader to refuse."""
        try:
            parsed = parse_json(data.decode())
        except ValueError:
            return data
        work = _Pass(self)
        cleaned = work.trace(parsed) if isinstance(parsed, dict) else work.json(parsed)
        self._count(work)
        if not work.hits:
            return data
        try:
            return json.dumps(cleaned, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return json.dumps(cleaned).encode()

    def logged(self, entry: Logged) -> Logged:
        """An entry that was written down before these settings held, redacted before anything else is made of it."""
        items = tuple(self._item(item) for item in entry.received.items)
        return Logged(entry.segment, Received(entry.received.received_ns, items))

    def _item(self, item: Any) -> Any:
        if isinstance(item, JsonTrace):
            return JsonTrace(item.trace_id, self.trace(item.data))
        return replace(item, data=self.spans(ExportTraceServiceRequest.FromString(item.data), item.data))

    def _count(self, work: "_Pass") -> None:
        for rule, hits in work.hits.items():
            self._metrics.redacted.labels(rule).inc(hits)


def make_redactor(settings: RedactSettings, metrics: Metrics) -> Redactor | None:
    """The redactor of these settings; `None` when they name nothing, so that nothing is searched."""
    return Redactor(settings, metrics) if settings.patterns or settings.attributes else None


class _Pass:
    """One walk over one request; `hits` counts replacements by rule."""

    def __init__(self, redactor: Redactor) -> None:
        self._patterns = redactor._patterns
        self._names = redactor._names
        self._replacement = redactor._replacement
        self.hits: Counter[str] = Counter()

    def resource(self, resource: Resource) -> bool:
        """Whether anything in the resource was replaced."""
        changed = self.attributes(resource.attributes)
        for entity in resource.entity_refs:
            changed |= self.fields(entity, "schema_url", "type")
            for keys in (entity.id_keys, entity.description_keys):
                cleaned = [self.text(key) for key in keys]
                changed |= cleaned != keys
                keys[:] = cleaned
        return changed

    def span(self, span: Span) -> bool:
        """Whether anything in the span was replaced."""
        changed = self.fields(span, "name", "trace_state") | self.attributes(span.attributes)
        if span.HasField("status"):
            changed |= self.fields(span.status, "message")
        for event in span.events:
            changed |= self.fields(event, "name") | self.attributes(event.attributes)
        for link in span.links:
            changed |= self.fields(link, "trace_state") | self.attributes(link.attributes)
        return changed

    def fields(self, holder: Any, *names: str) -> bool:
        """Text fields of a message."""
        changed = False
        for name in names:
            text = getattr(holder, name)
            cleaned = self.text(text) if text else text
            if cleaned is not text:
                setattr(holder, name, cleaned)
                changed = True
        return changed

    def attributes(self, attributes: Iterable[KeyValue]) -> bool:
        """Keys and values of an attribute list."""
        changed = False
        for attribute in attributes:
            rule = self._named(attribute.key)
            if rule is not None:
                if attribute.value.string_value != self._replacement:
                    attribute.value.string_value = self._replacement
                    self.hits[rule] += 1
                    changed = True
                continue
            changed |= self.fields(attribute, "key") | self._value(attribute.value)
        return changed

    def text(self, text: str) -> str:
        """The text without what the patterns find; the same object when they find nothing."""
        cleaned = self._matched(text)
        if "\\" not in cleaned:
            return cleaned
        readable = _ESCAPE.sub(_readable, cleaned)
        again = self._matched(readable)
        return cleaned if again is readable else again

    def number(self, value: float) -> float | str:
        """The number, or what stands in its place when the patterns find something in its digits."""
        digits = f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
        return value if self.text(digits) is digits else self._replacement

    def trace(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The JSON object of a trace, redacted; its own figures have to stay numbers."""
        cleaned: dict[str, Any] = {}
        for key, value in fields.items():
            is_figure = key in NUMBER_FIELDS and isinstance(value, int | float) and self._named(key) is None
            cleaned[self.text(key)] = value if is_figure else self._entry(key, value)
        return cleaned

    def json(self, value: Any) -> Any:
        """A JSON value, redacted."""
        match value:
            case str():
                return self.text(value)
            case bool():
                return value
            case int() | float():
                return self.number(value)
            case list():
                return [self.json(item) for item in value]
            case dict():
                return {self.text(key): self._entry(key, item) for key, item in value.items()}
            case _:
                return value

    def _entry(self, key: str, value: Any) -> Any:
        rule = self._named(key)
        if rule is None:
            return self.json(value)
        self.hits[rule] += value != self._replacement
        return self._replacement

    def _value(self, value: AnyValue) -> bool:
        match value.WhichOneof("value"):
            case "string_value":
                return self.fields(value, "string_value")
            case "int_value" | "double_value" as kind:
                return self._figure(value, getattr(value, kind))
            case "bytes_value":
                return self._bytes(value)
            case "array_value":
                return any([self._value(item) for item in value.array_value.values])  # noqa: C419 - all of them
            case "kvlist_value":
                return self.attributes(value.kvlist_value.values)
            case _:
                return False

    def _figure(self, value: AnyValue, given: float) -> bool:
        cleaned = self.number(given)
        if isinstance(cleaned, str):
            value.string_value = cleaned
        return cleaned is not given

    def _bytes(self, value: AnyValue) -> bool:
        try:
            encoding, text = "utf-8", value.bytes_value.decode()
        except UnicodeDecodeError:
            encoding, text = "latin-1", value.bytes_value.decode("latin-1")
        cleaned = self.text(text)
        if cleaned is text:
            return False
        value.bytes_value = cleaned.encode(encoding, "replace")
        return True

    def _matched(self, text: str) -> str:
        for name, pattern in self._patterns:
            if pattern.search(text) is not None:
                text, hits = pattern.subn(lambda _: self._replacement, text)
                self.hits[name] += hits
        return text

    def _named(self, key: str) -> str | None:
        return next((name for name, pattern in self._names if pattern.match(key)), None)


def _readable(escape: re.Match[str]) -> str:
    """The character of a JSON escape, unless it would break the JSON text around it."""
    try:
        character = json.loads(f'"{escape[0]}"')
    except ValueError:
        return escape[0]
    return escape[0] if character in '"\\' or not character.isprintable() else character
