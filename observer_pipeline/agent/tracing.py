"""Spans of the agent: OpenInference's ADK instrumentation on a global tracer provider, exported by OTLP/HTTP.

The provider must be the process's global one: ADK takes its tracer from there, and under a private provider the spans
of the model calls are lost. So one process has one set-up, made once; `generate` uses processes of its own for it.
"""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from openinference.instrumentation.google_adk import GoogleADKInstrumentor
from openinference.semconv.resource import ResourceAttributes
from opentelemetry import trace as trace_api
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from observer_core.errors import ObserverError

TRACES_PATH = "/v1/traces"

_run_trace_id: ContextVar[int | None] = ContextVar("run_trace_id", default=None)


class _RunIds(IdGenerator):
    """Random ids; inside `run_trace` every new root gets that run's trace id."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        return self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return _run_trace_id.get() or self._random.generate_trace_id()


@contextlib.contextmanager
def run_trace() -> Iterator[str]:
    """Everything traced inside belongs to one new trace; yields its id as 32 hex digits."""
    trace_id = secrets.randbits(127) + 1
    token = _run_trace_id.set(trace_id)
    try:
        yield f"{trace_id:032x}"
    finally:
        _run_trace_id.reset(token)


class _CountingExporter(SpanExporter):
    """Counts what arrived and what did not: OpenTelemetry's own exporter only logs its failures."""

    def __init__(self, inner: SpanExporter) -> None:
        self.inner = inner
        self.delivered = 0
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
        else:
            self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        self.inner.shutdown()


@dataclass(slots=True)
class Tracing:
    """The process's tracing: where spans go and how many arrived there."""

    provider: TracerProvider
    endpoint: str | None
    _exporter: _CountingExporter | None = field(default=None)

    @property
    def delivered(self) -> int:
        """Spans the endpoint has accepted."""
        return self._exporter.delivered if self._exporter else 0

    def flush(self) -> None:
        """Wait until all ended spans are exported.

        Raises:
            ObserverError: some did not arrive.
        """
        done = self.provider.force_flush(60_000)
        lost = self._exporter.lost if self._exporter else 0
        if not done or lost:
            raise ObserverError(
                f"{lost or 'some'} spans did not arrive at {self.endpoint}; is a receiver running there?"
            )


def traces_url(endpoint: str) -> str:
    """The OTLP/HTTP traces address of an endpoint given with or without its path."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH


def install_tracing(
    *, service_name: str, project: str, endpoint: str | None = None, processors: Sequence[SpanProcessor] = ()
) -> Tracing:
    """Set the process's tracer provider and instrument ADK; can be done once per process.

    Args:
        service_name: `service.name` of the spans.
        project: `openinference.project.name` of the spans (Phoenix's project).
        endpoint: where spans are exported by OTLP/HTTP; not at all when None.
        processors: further span processors.

    Raises:
        ObserverError: the process has a tracer provider already.
    """
    resource = Resource.create({SERVICE_NAME: service_name, ResourceAttributes.PROJECT_NAME: project})
    provider = TracerProvider(resource=resource, id_generator=_RunIds())
    exporter = None
    if endpoint:
        exporter = _CountingExporter(OTLPSpanExporter(traces_url(endpoint), compression=Compression.Gzip))
        # An agent's span batch is a few hundred kB; the queue holds some hundred runs, so that none is dropped.
        provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=16_384, max_export_batch_size=256, schedule_delay_millis=500)
        )
    for processor in processors:
        provider.add_span_processor(processor)
    trace_api.set_tracer_provider(provider)
    if trace_api.get_tracer_provider() is not provider:
        raise ObserverError("this process has a tracer provider already; run the agent in a process of its own")
    GoogleADKInstrumentor().instrument(tracer_provider=provider)
    return Tracing(provider, endpoint, exporter)
