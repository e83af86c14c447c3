"""The service's own OpenTelemetry traces: one per decision, of where its time went. Off unless an endpoint is set.

Never into itself: an endpoint among the own listeners is refused, and of a trace that another way led back here (its
resource carries `observer.self`) no further trace is made. Best effort, unlike the traces of customers: what waits is
bounded, and what a back end does not take is counted and dropped.
"""

import gzip
import logging
import random
import secrets
import threading
from collections import deque
from datetime import datetime

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from observer_core.decisions import Decision
from observer_serving.candidate import Candidate
from observer_serving.config import TelemetrySettings
from observer_serving.metrics import Metrics

log = logging.getLogger(__name__)

SELF = "observer.self"
SERVICE_NAME = "observer"
_MAX_WAITING = 2048
_BATCH = 256
_EVERY_S = 2.0
_TIMEOUT_S = 5.0
_STOP_WAIT_S = 3.0
_ATTRIBUTES = ("decision", "reason", "project", "model", "model_version", "policy_version", "complete_reason")


class Telemetry:
    """Tells a back end about decisions, on a thread of its own."""

    def __init__(self, settings: TelemetrySettings, metrics: Metrics, *, version: str) -> None:
        assert settings.endpoint is not None
        self._endpoint = settings.endpoint
        self._share = settings.share
        self._metrics = metrics
        self._version = version
        headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
        self._client = httpx.Client(timeout=_TIMEOUT_S, headers=headers)
        self._waiting: deque[Decision] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer-telemetry", daemon=True)

    def add(self, decision: Decision, candidate: Candidate) -> None:
        """A trace was decided; costs the caller nothing."""
        if SELF in candidate.facts.attributes or random.random() >= self._share:
            return
        if len(self._waiting) >= _MAX_WAITING:
            self._metrics.own_traces.labels("dropped").inc()
            return
        self._waiting.append(decision)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send what waits, if the back end answers at once."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_WAIT_S)
        self._client.close()

    def flush(self) -> None:
        """Send everything that waits; what is not taken is dropped."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            body = gzip.compress(request_of(batch, self._version).SerializeToString(), compresslevel=4, mtime=0)
            headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
            try:
                self._client.post(self._endpoint, content=body, headers=headers).raise_for_status()
            except httpx.HTTPError as error:
                log.warning("own traces not taken by %s: %s", self._endpoint, error)
                self._metrics.own_traces.labels("dropped").inc(len(batch))
            else:
                self._metrics.own_traces.labels("sent").inc(len(batch))

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.flush()
        self.flush()


def request_of(decisions: list[Decision], version: str) -> ExportTraceServiceRequest:
    """One trace per decision: `decide trace` from receipt to decision, in it `assemble` and `score`."""
    group = ResourceSpans()
    for key, value in (("service.name", SERVICE_NAME), ("service.version", version)):
        group.resource.attributes.add(key=key).value.string_value = value
    group.resource.attributes.add(key=SELF).value.bool_value = True
    scope = group.scope_spans.add()
    scope.scope.name = "observer_serving"
    for decision in decisions:
        received, decided = _unix_ns(decision.received_at), _unix_ns(decision.decided_at)
        decided = max(received, decided)  # the wall clock may have been set back meanwhile
        completed = max(received, decided - int(decision.latency_ms * 1e6))
        trace_id = secrets.token_bytes(16)
        root = _span(trace_id, b"", "decide trace", received, decided)
        for name in _ATTRIBUTES:
            root.attributes.add(key=f"observer.{name}").value.string_value = str(getattr(decision, name))
        root.attributes.add(key="observer.spans").value.int_value = decision.spans
        root.attributes.add(key="observer.trace_id").value.string_value = decision.trace_id
        if decision.p_wrong is None:
            root.status.code = root.status.STATUS_CODE_ERROR
            root.status.message = decision.reason
        scope.spans.extend(
            [
                root,
                _span(trace_id, root.span_id, "assemble", received, completed),
                _span(trace_id, root.span_id, "score", completed, decided),
            ]
        )
    return ExportTraceServiceRequest(resource_spans=[group])


def _span(trace_id: bytes, parent: bytes, name: str, start: int, end: int) -> Span:
    return Span(
        trace_id=trace_id,
        span_id=secrets.token_bytes(8),
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start,
        end_time_unix_nano=end,
    )


def _unix_ns(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1e6) * 1000
