"""Prometheus metrics of the service; one registry per service, nothing global.

The counters balance, for traces and for spans: received = kept + dropped + rejected (+ duplicates) + moved + open.
They count since the process started; what a restart reads back from the log is received again.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from observer_core.decisions import Decision

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SHARES = tuple(i / 20 for i in range(1, 21))


class Metrics:
    """All metrics by name; see their help texts on `/metrics`."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"observer_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"observer_{name}", text, registry=registry)

        self.traces_received = counter("traces_received", "Traces of which a first span (or the JSON) was received")
        self.traces_kept = counter("traces_kept", "Traces decided keep, by reason", "reason")
        self.traces_dropped = counter("traces_dropped", "Traces decided drop, by reason", "reason")
        self.traces_rejected = counter("traces_rejected", "JSON traces refused as invalid")
        self.traces_moved = counter("traces_moved", "Traces another worker went on with (buffer: nats)")
        self.traces_open = gauge("traces_open", "Traces received and not decided yet")
        self.spans_received = counter("spans_received", "Spans received, also those rejected and duplicates")
        self.spans_kept = counter("spans_kept", "Spans of kept traces, late ones too")
        self.spans_dropped = counter("spans_dropped", "Spans of dropped traces, late ones too")
        self.spans_rejected = counter("spans_rejected", "Spans refused for unusable ids")
        self.spans_duplicate = counter("spans_duplicate", "Spans that had been received before")
        self.spans_moved = counter("spans_moved", "Spans of traces another worker went on with (buffer: nats)")
        self.spans_open = gauge("spans_open", "Spans of traces not decided yet")
        self.spans_late = counter("spans_late", "Spans that came after their trace's decision", "decision")
        self.completed = counter("traces_completed", "Traces that left assembly, by why", "complete_reason")
        self.redacted = counter("redacted", "Texts and attributes replaced before the log, by rule", "rule")
        self.bytes_received = counter("bytes_received", "Bytes of the spans received, uncompressed")
        self.scorer_failures = counter("scorer_failures", "Traces the scorer gave no usable score", "kind")
        self.shadow_scores = counter("shadow_scores", "Traces given to shadow scorers, by outcome", "name", "outcome")
        self.cascade = counter("cascade", "Traces scored in a cascade, by the stage whose score stands", "stage")
        self.evaluator_failures = counter(
            "evaluator_failures", "Values that evaluators did not give, by why", "evaluator", "kind"
        )
        self.normalise_failures = counter("normalise_failures", "Traces that could not be read as an agent run")
        self.faults = counter("faults", "Faults of observer's own; what they met waits in the log, or is set aside")
        self.without_answer = counter("traces_without_answer", "Traces in which no final answer was found, scored so")
        self.model_switches = counter("model_switches", "Switches of the model, by result", "result")
        self.keep_probability = counter("keep_probability_sum", "Sum of the keep probabilities of all decisions")
        self.p_wrong = Histogram("observer_p_wrong", "Calibrated scores", buckets=_SHARES, registry=registry)
        self.score_seconds = Histogram(
            "observer_score_batch_seconds", "Time the scorer takes for a batch", buckets=_SECONDS, registry=registry
        )
        self.decision_seconds = Histogram(
            "observer_decision_seconds", "Completion of a trace to its decision", buckets=_SECONDS, registry=registry
        )
        self.wal_bytes = gauge("wal_bytes", "Bytes of the write-ahead log on disk")
        self.undeliverable_files = gauge("undeliverable_files", "Traces and late spans that were set aside")
        self.wal_damaged_bytes = gauge("wal_damaged_bytes", "Bytes of the log that could not be read back at start")
        self.waiting_traces = gauge("waiting_traces", "Complete traces that wait for the scorer")
        self.held_bytes = gauge("held_bytes", "Bytes of traces not decided yet")
        self.threshold = gauge("threshold", "The threshold on p_wrong that decides now")
        self.notifications = counter("notifications", "Notes to webhooks, by outcome", "webhook", "outcome")
        self.own_traces = counter("own_traces", "The service's own traces, by outcome", "outcome")
        self.exports = counter("exports", "Outcomes of exports, by back end", "exporter", "outcome")

    def reject_spans(self, count: int) -> None:
        """Count spans that were received and refused."""
        self.spans_received.inc(count)
        self.spans_rejected.inc(count)

    def decided(self, decision: Decision) -> None:
        """Count a decision that is on disk."""
        kept = decision.decision == "keep"
        (self.traces_kept if kept else self.traces_dropped).labels(decision.reason).inc()
        (self.spans_kept if kept else self.spans_dropped).inc(decision.spans)
        self.keep_probability.inc(decision.keep_probability)
        self.decision_seconds.observe(decision.latency_ms / 1000)
        if decision.p_wrong is not None:
            self.p_wrong.observe(decision.p_wrong)

    def render(self) -> bytes:
        """The text Prometheus scrapes."""
        return generate_latest(self.registry)
