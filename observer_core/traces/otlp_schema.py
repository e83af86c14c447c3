"""The messages of an OTLP trace export as msgspec reads them from JSON, field for field those of the protobuf schema.

Numbers stay as they came: JSON has 64-bit integers as strings or numbers, and what a number may be is checked where it
is written (`observer_core.traces.otlp_json_fields`). Absent and null are both `None`; unknown fields are skipped.
"""

from typing import ClassVar

import msgspec
from google.protobuf.descriptor import Descriptor
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

Number = int | float | str


class OtlpMessage(msgspec.Struct, gc=False, rename="camel"):
    """What all have; no cycle can come out of JSON, so the garbage collector need not follow them."""

    descriptor: ClassVar[Descriptor]


class AnyValue(OtlpMessage):
    descriptor = common_pb2.AnyValue.DESCRIPTOR
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Number | None = None
    double_value: Number | None = None
    array_value: "ArrayValue | None" = None
    kvlist_value: "KeyValueList | None" = None
    bytes_value: str | None = None
    string_value_strindex: Number | None = None


class ArrayValue(OtlpMessage):
    descriptor = common_pb2.ArrayValue.DESCRIPTOR
    values: list[AnyValue] | None = None


class KeyValue(OtlpMessage):
    descriptor = common_pb2.KeyValue.DESCRIPTOR
    key: str | None = None
    value: AnyValue | None = None
    key_strindex: Number | None = None


class KeyValueList(OtlpMessage):
    descriptor = common_pb2.KeyValueList.DESCRIPTOR
    values: list[KeyValue] | None = None


class EntityRef(OtlpMessage):
    descriptor = common_pb2.EntityRef.DESCRIPTOR
    schema_url: str | None = None
    type: str | None = None
    id_keys: list[str] | None = None
    description_keys: list[str] | None = None


class Resource(OtlpMessage):
    descriptor = resource_pb2.Resource.DESCRIPTOR
    attributes: list[KeyValue] | None = None
    dropped_attributes_count: Number | None = None
    entity_refs: list[EntityRef] | None = None


class InstrumentationScope(OtlpMessage):
    descriptor = common_pb2.InstrumentationScope.DESCRIPTOR
    name: str | None = None
    version: str | None = None
    attributes: list[KeyValue] | None = None
    dropped_attributes_count: Number | None = None


class Event(OtlpMessage):
    descriptor = trace_pb2.Span.Event.DESCRIPTOR
    time_unix_nano: Number | None = None
    name: str | None = None
    attributes: list[KeyValue] | None = None
    dropped_attributes_count: Number | None = None


class Link(OtlpMessage):
    descriptor = trace_pb2.Span.Link.DESCRIPTOR
    trace_id: str | None = None
    span_id: str | None = None
    trace_state: str | None = None
    attributes: list[KeyValue] | None = None
    dropped_attributes_count: Number | None = None
    flags: Number | None = None


class Status(OtlpMessage):
    descriptor = trace_pb2.Status.DESCRIPTOR
    message: str | None = None
    code: Number | None = None


class Span(OtlpMessage):
    descriptor = trace_pb2.Span.DESCRIPTOR
    trace_id: str | None = None
    span_id: str | None = None
    trace_state: str | None = None
    parent_span_id: str | None = None
    flags: Number | None = None
    name: str | None = None
    kind: Number | None = None
    start_time_unix_nano: Number | None = None
    end_time_unix_nano: Number | None = None
    attributes: list[KeyValue] | None = None
    dropped_attributes_count: Number | None = None
    events: list[Event] | None = None
    dropped_events_count: Number | None = None
    links: list[Link] | None = None
    dropped_links_count: Number | None = None
    status: Status | None = None


class ScopeSpans(OtlpMessage):
    descriptor = trace_pb2.ScopeSpans.DESCRIPTOR
    scope: InstrumentationScope | None = None
    spans: list[msgspec.Raw] | None = None
    """The text of each span, to be read one by one: their values then take the same memory in turn, which stays in the
    processor's cache."""
    schema_url: str | None = None


class ResourceSpans(OtlpMessage):
    descriptor = trace_pb2.ResourceSpans.DESCRIPTOR
    resource: Resource | None = None
    scope_spans: list[ScopeSpans] | None = None
    schema_url: str | None = None


class ExportRequest(OtlpMessage):
    descriptor = trace_service_pb2.ExportTraceServiceRequest.DESCRIPTOR
    resource_spans: list[ResourceSpans] | None = None
