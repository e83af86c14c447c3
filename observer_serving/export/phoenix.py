"""What Arize Phoenix needs beyond OTLP (measured on 20.26): sane times, and annotations that people can filter by."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PROJECT_HEADER = "x-project-name"
VERSION_HEADER = "x-phoenix-server-version"
"""On every answer of a Phoenix server: how one is recognised when the settings do not say so."""
ANNOTATION_NAME = "observer.p_wrong"
PAGE = 1000
"""The most spans of one answer."""
_TRACES_PATH = "/v1/traces"


def base_url(endpoint: str) -> str | None:
    """The server, from where traces go; `None` when the path is not Phoenix's."""
    return endpoint.removesuffix(_TRACES_PATH) if endpoint.endswith(_TRACES_PATH) else None


def annotation(decision: dict[str, Any]) -> dict[str, Any] | None:
    """The trace annotation of a decision record; an unscored trace has none.

    The identifier names the model, so that a person's annotation never overwrites it and versions stay side by side.
    """
    if decision["p_wrong"] is None:
        return None
    kept = ("decision", "threshold", "keep_probability", "severity", "model", "policy_version", "mode")
    return {
        "trace_id": decision["trace_id"],
        "name": ANNOTATION_NAME,
        "annotator_kind": "CODE",
        "result": {"score": decision["p_wrong"], "label": decision["reason"]},
        "metadata": {name: decision[name] for name in kept},
        "identifier": f"observer:{decision['model_version']}",
    }


def repair_times(body: bytes) -> tuple[bytes, int]:
    """The request with every end before its start moved to the start (Phoenix shows such spans in 1970), and how many.

    A request that needs nothing is handed back as the same bytes.
    """
    request = ExportTraceServiceRequest.FromString(body)
    repaired = 0
    for group in request.resource_spans:
        for scope_spans in group.scope_spans:
            for span in scope_spans.spans:
                if span.end_time_unix_nano < span.start_time_unix_nano:
                    span.end_time_unix_nano = span.start_time_unix_nano
                    repaired += 1
    return (request.SerializeToString(), repaired) if repaired else (body, 0)
