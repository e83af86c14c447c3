"""A request cut into several that each stay below a size, every span whole."""

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_ENVELOPE_BYTES = 64
"""Tags and lengths around one span, its scope and its resource, at most."""


def split_request(body: bytes, max_bytes: int) -> list[bytes]:
    """The spans of `body` in requests of at most `max_bytes`; a span that is larger is alone in its own.

    A body that is small enough comes back as it is.
    """
    if len(body) <= max_bytes:
        return [body]
    out: list[bytes] = []
    part = ExportTraceServiceRequest()
    size = 0
    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope_spans in resource_spans.scope_spans:
            envelope = resource_spans.resource.ByteSize() + scope_spans.scope.ByteSize() + _ENVELOPE_BYTES
            group = None
            for span in scope_spans.spans:
                needs = span.ByteSize() + _ENVELOPE_BYTES
                if part.resource_spans and size + needs + envelope * (group is None) > max_bytes:
                    out.append(part.SerializeToString())
                    part, size, group = ExportTraceServiceRequest(), 0, None
                if group is None:
                    outer = part.resource_spans.add(schema_url=resource_spans.schema_url)
                    outer.resource.CopyFrom(resource_spans.resource)
                    group = outer.scope_spans.add(schema_url=scope_spans.schema_url)
                    group.scope.CopyFrom(scope_spans.scope)
                    size += envelope + len(resource_spans.schema_url) + len(scope_spans.schema_url)
                group.spans.append(span)
                size += needs
    if part.resource_spans:
        out.append(part.SerializeToString())
    return out
