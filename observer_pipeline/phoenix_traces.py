"""Traces of a Phoenix project, rebuilt from the spans its client reads, and spans sent to one."""

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from observer_core.errors import InputError, ObserverError
from observer_core.traces.normalise import PROJECT_KEY, normalise
from observer_core.traces.trace import Trace
from observer_pipeline.verdicts import merge_annotations

if TYPE_CHECKING:
    from phoenix.client import Client

    from observer_pipeline.resources.phoenix import PhoenixResource

API_KEY_VARIABLE = "OBSERVER_PHOENIX_API_KEY"
_TIMEOUT_S = 60
_FIRST_WINDOW = timedelta(hours=1)
_FEW, _MANY = 1_000, 10_000
"""A window with fewer spans is followed by one twice as long, one with more by one half as long."""
_ALL = 10**9
_BATCH_SPANS = 500
_KIND_KEY = "openinference.span.kind"
_SDK_LIMIT = 128
"""Attributes that OpenTelemetry's SDKs keep of a span by default; of more they drop the oldest."""


def read_project(url: str) -> list[Trace]:
    """All traces of `phoenix://host:port/project` (`phoenixs://` for https), by their start.

    Each carries the keep probability that Observer wrote on its root and, where people gave one, their verdict as label
    (annotation `correctness` on the root span or the trace). An API key is taken from `OBSERVER_PHOENIX_API_KEY`.

    Raises:
        InputError: the URL is malformed, or there is no such project.
        ObserverError: Phoenix does not answer.
    """
    from observer_pipeline.annotations import pull

    phoenix = open_project(url)
    base_url, project = phoenix.base_url, phoenix.project
    try:
        traces = _traces(phoenix.client(), project)
        verdicts = merge_annotations(pull(phoenix).to_pylist()).verdicts
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 404:
            raise InputError(f"{base_url} has no project '{project}'; see its list of projects") from error
        raise ObserverError(f"{base_url} answered {error.response.status_code}; check {API_KEY_VARIABLE}") from error
    except httpx.HTTPError as error:
        raise ObserverError(
            f"no answer from {base_url}: {error}; start Phoenix ('observer up') or mend the URL"
        ) from error
    for trace in traces:
        verdict = verdicts.get(trace.trace_id or "")
        if verdict is not None:
            trace.label, trace.label_source = verdict.label, "annotation"
            trace.annotator = ", ".join(verdict.annotators)
    return traces


def open_project(url: str) -> "PhoenixResource":
    """The Phoenix project behind `phoenix://host:port/project`, with the key of `OBSERVER_PHOENIX_API_KEY`.

    Raises:
        InputError: the URL is malformed.
    """
    from observer_pipeline.resources.phoenix import PhoenixResource

    base_url, project = _parse(url)
    return PhoenixResource(base_url=base_url, project=project, api_key=os.environ.get(API_KEY_VARIABLE) or None)


def send_to_project(url: str, requests: Iterable[ExportTraceServiceRequest]) -> int:
    """Send spans to `phoenix://host:port/project`, which needs not exist; returns how many were accepted.

    Raises:
        InputError: the URL is malformed, or Phoenix refuses the spans.
        ObserverError: Phoenix does not answer.
    """
    base_url, project = _parse(url)
    key = os.environ.get(API_KEY_VARIABLE)
    headers = {
        "content-type": "application/x-protobuf",
        "content-encoding": "gzip",
        "x-project-name": project,
    } | ({"authorization": f"Bearer {key}"} if key else {})
    sent = 0
    with httpx.Client(timeout=_TIMEOUT_S, headers=headers) as client:
        for request in _batches(requests):
            try:
                answer = client.post(f"{base_url}/v1/traces", content=gzip.compress(request.SerializeToString()))
            except httpx.HTTPError as error:
                raise ObserverError(
                    f"no answer from {base_url} after {sent} spans: {error}; start Phoenix or mend the URL"
                ) from error
            if answer.status_code >= 400:
                said = " ".join(answer.text.split())[:200]
                raise InputError(f"{base_url} refused spans with status {answer.status_code}: {said}; mend them")
            sent += _count(request)
    return sent


def _batches(requests: Iterable[ExportTraceServiceRequest]) -> Iterator[ExportTraceServiceRequest]:
    """The spans in requests of some hundred, no trace in two of them."""
    batch = ExportTraceServiceRequest()
    for request in requests:
        batch.MergeFrom(request)
        if _count(batch) >= _BATCH_SPANS:
            yield batch
            batch = ExportTraceServiceRequest()
    if batch.resource_spans:
        yield batch


def _count(request: ExportTraceServiceRequest) -> int:
    return sum(len(scope.spans) for group in request.resource_spans for scope in group.scope_spans)


def span_of(row: Mapping[str, Any]) -> Span:
    """The OTLP span of a row of Phoenix's span list; what Phoenix does not keep (flags, links, scope) is empty."""
    context = row["context"]
    span = Span(
        trace_id=bytes.fromhex(context["trace_id"]),
        span_id=bytes.fromhex(context["span_id"]),
        parent_span_id=bytes.fromhex(row.get("parent_id") or ""),
        name=row["name"],
        start_time_unix_nano=_unix_ns(row["start_time"]),
        end_time_unix_nano=_unix_ns(row["end_time"]),
    )
    span.status.code = Status.StatusCode.Value(f"STATUS_CODE_{row['status_code']}")
    span.status.message = row.get("status_message") or ""
    attributes = row.get("attributes") or {}
    # Phoenix does not keep how many were dropped; of a span as full as can be some were.
    span.dropped_attributes_count = int(len(attributes) >= _SDK_LIMIT)
    for key, value in attributes.items():
        _set(span.attributes.add(key=key).value, value)
    if row["span_kind"] != "UNKNOWN":
        span.attributes.add(key=_KIND_KEY).value.string_value = row["span_kind"]
    for event in row.get("events") or []:
        target = span.events.add(name=event["name"], time_unix_nano=_unix_ns(event["timestamp"]))
        for key, value in (event.get("attributes") or {}).items():
            _set(target.attributes.add(key=key).value, value)
    return span


def _traces(client: "Client", project: str) -> list[Trace]:
    by_trace: dict[bytes, ResourceSpans] = {}
    for row in _rows(client, project):
        span = span_of(row)
        if span.trace_id not in by_trace:
            group = by_trace[span.trace_id] = ResourceSpans()
            group.resource.attributes.add(key=PROJECT_KEY).value.string_value = project
            group.scope_spans.add()
        by_trace[span.trace_id].scope_spans[0].spans.append(span)
    out: list[Trace] = []
    for group in by_trace.values():
        read = normalise([group])
        probability = read.attributes.get("observer.keep_probability", [])
        if probability and isinstance(probability[0], int | float) and 0 < probability[0] <= 1:
            read.trace.keep_probability = float(probability[0])
        out.append(read.trace)
    return out


def _rows(client: "Client", project: str) -> Iterator[Mapping[str, Any]]:
    """All spans once, in windows of time so that no answer is huge; Phoenix pages within a window."""
    ends = [_edge(client, project, order) for order in ("asc", "desc")]
    if ends[0] is None or ends[1] is None:
        return
    start, last = ends[0], ends[1]
    width = _FIRST_WINDOW
    # The last trace's later spans start after the trace itself: read on until now.
    until = max(last, datetime.now(UTC)) + timedelta(seconds=1)
    while start < until:
        end = min(start + width, until)
        rows = client.spans.get_spans(
            project_identifier=project, start_time=start, end_time=end, limit=_ALL, timeout=_TIMEOUT_S
        )
        yield from sorted(rows, key=lambda row: row["start_time"])
        width = width * 2 if len(rows) < _FEW else width / 2 if len(rows) > _MANY else width
        start = end


def _edge(client: "Client", project: str, order: Any) -> datetime | None:
    """When the first or the last trace started."""
    found = client.traces.get_traces(
        project_identifier=project, sort="start_time", order=order, limit=1, timeout=_TIMEOUT_S
    )
    return datetime.fromisoformat(found[0]["start_time"]) if found else None


def _parse(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    project = parts.path.strip("/")
    if parts.scheme not in ("phoenix", "phoenixs") or not parts.netloc or not project or "/" in project:
        raise InputError(f"'{url}' is no Phoenix project; write phoenix://host:port/project")
    return f"{'https' if parts.scheme == 'phoenixs' else 'http'}://{parts.netloc}", project


def _unix_ns(text: str) -> int:
    moment = datetime.fromisoformat(text)
    whole = int(moment.replace(microsecond=0).timestamp())
    return max(0, whole * 1_000_000_000 + moment.microsecond * 1000)


def _set(target: AnyValue, value: Any) -> None:
    match value:
        case bool():
            target.bool_value = value
        case int():
            target.int_value = value
        case float():
            target.double_value = value
        case str():
            target.string_value = value
        case list():
            target.array_value.SetInParent()
            for item in value:
                _set(target.array_value.values.add(), item)
        case dict():
            target.kvlist_value.SetInParent()
            for key, item in value.items():
                _set(target.kvlist_value.values.add(key=key).value, item)
        case _:
            target.Clear()
