"""One trace decided outside the service: the same model, policy and records, without ports, log or spool."""

import tempfile
import time
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.decisions import Decision
from observer_core.errors import InputError, ObserverError
from observer_core.home import Home
from observer_core.traces.jsonl import parse_trace
from observer_core.traces.otlp import decode_request, split_by_trace
from observer_core.traces.to_spans import wire_trace_id
from observer_serving.assemble import AssembledTrace
from observer_serving.buffer.received import JsonTrace
from observer_serving.candidate import Candidate, from_json, from_spans
from observer_serving.clock import SystemClock
from observer_serving.config import SERVICE, ExporterSettings, Settings
from observer_serving.decide import Decider
from observer_serving.export import ExportItem, ExportOutcome, decorate_root, make_exporter
from observer_serving.metrics import Metrics
from observer_serving.redact import make_redactor
from observer_serving.score import ModelChoice, Scored, load_model

EXPORT_TIMEOUT_S = 30.0


def read_candidate(data: bytes, settings: Settings, *, source: str) -> Candidate:
    """A candidate from a trace's JSON or from OTLP spans (JSON or protobuf) of one trace, redacted as the settings say;
    `source` names it in errors.

    Raises:
        InputError: neither, or the spans belong to several traces.
    """
    clock = SystemClock()
    redactor = make_redactor(settings.redact, Metrics())
    text = data.lstrip()
    if text.startswith(b"{") and b'"resourceSpans"' not in data:
        data = redactor.trace(data) if redactor else data
        try:
            trace = parse_trace(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{source} is not UTF-8 (byte {error.start}); give a trace as JSON or OTLP") from None
        item = JsonTrace(wire_trace_id(trace.trace_id), data)
        return from_json(item, received_ns=clock.now_ns(), segment=0, now=clock.monotonic())
    request = decode_request(data, "json" if text.startswith(b"{") else "protobuf")
    if redactor is not None:
        redactor.spans(request, request.SerializeToString())
    by_trace = split_by_trace(request.resource_spans)
    if len(by_trace) != 1:
        raise InputError(f"{source} holds {len(by_trace)} traces; give a trace as JSON, or the OTLP spans of one trace")
    ((trace_id, groups),) = by_trace.items()
    span_ids = [span.span_id for group in groups for scope in group.scope_spans for span in scope.spans]
    return from_spans(
        AssembledTrace(
            trace_id=trace_id,
            pieces=(ExportTraceServiceRequest(resource_spans=groups).SerializeToString(),),
            span_ids=b"".join(dict.fromkeys(span_ids)),
            duplicates=len(span_ids) - len(set(span_ids)),
            complete_reason="root_ended",
            received_ns=clock.now_ns(),
            completed_at=clock.monotonic(),
            segments=(),
        )
    )


def decide_once(candidate: Candidate, choice: ModelChoice, settings: Settings, home: Home) -> Decision:
    """Score and decide a candidate as the service over `home` would at this moment; nothing is counted."""
    loaded = load_model(choice, settings.scorer, shadows=False)
    policies = {scope: policy for scope in settings.scopes() if (policy := settings.policy_of(scope)) is not None}
    scores = {SERVICE: loaded.validation_scores}
    decider = Decider(home.ensure(home.serving), policies, SystemClock(), initial_scores=scores)
    assert candidate.trace is not None
    scorer = loaded.first.scorer
    (score,) = scorer.score([candidate.trace])
    return decider.preview(Scored(candidate, score, None, scorer.model, scorer.model_version))


def export_once(candidate: Candidate, decision: Decision, back_end: ExporterSettings) -> ExportOutcome:
    """Send a kept trace on and wait for the answer.

    Raises:
        ObserverError: no answer in time, or the back end refused the trace; says what it said.
    """
    spans: list[ResourceSpans] = decorate_root(candidate.resource_spans(), candidate.root_span_id, decision)
    outcomes: list[ExportOutcome] = []
    with tempfile.TemporaryDirectory() as folder:
        exporter = make_exporter(back_end, Path(folder) / "queue", on_outcome=outcomes.append)
        exporter.submit(ExportItem(decision, spans))
        exporter.start()
        until = time.monotonic() + EXPORT_TIMEOUT_S
        while not outcomes and time.monotonic() < until and not exporter.stats().last_error:
            time.sleep(0.05)
        problem = exporter.stats().last_error
        exporter.stop(5.0)
    if not outcomes:
        raise ObserverError(
            f"{back_end.endpoint} did not take the trace: {problem or 'no answer'}; start it and try again"
        )
    if outcomes[0].outcome == "dead_letter":
        raise ObserverError(f"{back_end.endpoint} refused the trace: {outcomes[0].detail}")
    return outcomes[0]
