"""Spans of the agent: OpenInference's ADK instrumentation on a global tracer provider, exported by OTLP/HTTP.

The provider must be the process's global one: ADK takes its tracer from there, and under a private provider the spans
of the model calls are lost. So one process has one set-up, made once; `generate` uses processes of its own for it.
"""

import contextlib
import itertools
import random
import uuid
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from google.adk.platform import time as adk_time
from google.adk.platform import uuid as adk_uuid
from openinference.instrumentation.google_adk import GoogleADKInstrumentor
from openinference.semconv.resource import ResourceAttributes
from opentelemetry import trace as trace_api
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from observer_core.errors import ObserverError
from observer_pipeline.agent.endpoint import traces_url

SEEDED_EPOCH_S = 1_767_225_600.0
"""Where seeded clocks begin: 2026-01-01 UTC."""

_run: ContextVar["_Run | None"] = ContextVar("run", default=None)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run's trace id, and where its other ids come from."""

    trace_id: int
    ids: random.Random


class _RunIds(IdGenerator):
    """Random ids; inside `run_trace` every new root gets that run's trace id, and spans ids of its generator."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        run = _run.get()
        return run.ids.getrandbits(64) or 1 if run else self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        run = _run.get()
        return run.trace_id if run else self._random.generate_trace_id()


@contextlib.contextmanager
def run_trace(seed: str | None = None) -> Iterator[str]:
    """Everything traced inside belongs to one new trace; yields its id as 32 hex digits.

    With a `seed` the ids of the trace, its spans, session, events and calls are made from it, and ADK's own clock
    (which stamps events inside attribute values) counts milliseconds from a fixed day.
    """
    ids = random.SystemRandom() if seed is None else random.Random(f"ids:{seed}")
    run = _Run(ids.getrandbits(127) + 1, ids)
    token = _run.set(run)
    if seed is not None:
        ticks = itertools.count()
        adk_uuid.set_id_provider(lambda: str(uuid.UUID(int=ids.getrandbits(128), version=4)))
        adk_time.set_time_provider(lambda: SEEDED_EPOCH_S + next(ticks) / 1000)
    try:
        yield f"{run.trace_id:032x}"
    finally:
        _run.reset(token)
        adk_uuid.reset_id_provider()
        adk_time.reset_time_provider()


class RunSpans(SpanProcessor):
    """Keeps the spans of finished runs until they are taken, and the order in which they began and ended."""

    def __init__(self) -> None:
        self._spans: dict[int, list[ReadableSpan]] = {}
        self._order: dict[int, list[tuple[int, bool]]] = {}

    def on_start(self, span: ReadableSpan, parent_context: Any = None) -> None:  # noqa: ARG002 - the SDK's signature
        self._note(span, begins=True)

    def on_end(self, span: ReadableSpan) -> None:
        trace_id = self._note(span, begins=False)
        self._spans.setdefault(trace_id, []).append(span)

    def _note(self, span: ReadableSpan, *, begins: bool) -> int:
        context = span.get_span_context()
        assert context is not None
        self._order.setdefault(context.trace_id, []).append((context.span_id, begins))
        return context.trace_id

    def take(self, trace_id: str) -> tuple[list[ReadableSpan], list[tuple[int, bool]]]:
        """The spans of a trace by their end, and (span id, whether it began) of every beginning and end in order."""
        key = int(trace_id, 16)
        return self._spans.pop(key, []), self._order.pop(key, [])


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


def install_tracing(
    *,
    service_name: str,
    project: str,
    endpoint: str | None = None,
    processors: Sequence[SpanProcessor] = (),
    instance: str | None = None,
) -> Tracing:
    """Set the process's tracer provider and instrument ADK; can be done once per process.

    Args:
        service_name: `service.name` of the spans.
        project: `openinference.project.name` of the spans (Phoenix's project).
        endpoint: where spans are exported by OTLP/HTTP; not at all when None.
        processors: further span processors.
        instance: `service.instance.id` of the spans; the SDK draws one for each process when None.

    Raises:
        ObserverError: the process has a tracer provider already.
    """
    named = {SERVICE_NAME: service_name, ResourceAttributes.PROJECT_NAME: project}
    resource = Resource.create(named | ({SERVICE_INSTANCE_ID: instance} if instance else {}))
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
