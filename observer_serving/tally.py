"""What the engine counts, in the metrics, in the dashboard's figures and in the log of decisions."""

import contextlib
import logging
from collections.abc import Iterator

from observer_core.decisions import Decision
from observer_serving.buffer.protocol import Logged
from observer_serving.candidate import Candidate
from observer_serving.logs import DECISIONS
from observer_serving.metrics import Metrics
from observer_serving.receive.wire import Piece
from observer_serving.stats import Stats

_log = logging.getLogger(__name__)
_decision_log = logging.getLogger(DECISIONS)


class Tally:
    """Owned by the engine's thread."""

    def __init__(self, metrics: Metrics, stats: Stats) -> None:
        self._metrics = metrics
        self._stats = stats
        self._opened = 0

    def received(self, entries: list[Logged], now: float) -> int:
        """Count the bytes and spans of entries, of all their traces at once; returns the bytes."""
        size = spans = 0
        for entry in entries:
            for item in entry.received.items:
                size += len(item.data)
                spans += item.spans if isinstance(item, Piece) else 0
        self._metrics.bytes_received.inc(size)
        self._spans(spans, now)
        return size

    def opened(self) -> None:
        """Count a trace of which the first span came; the metric follows with the others' in `show`."""
        self._opened += 1

    def show(self) -> None:
        """Bring the metrics up to what was counted one by one."""
        self._metrics.traces_received.inc(self._opened)
        self._opened = 0

    def received_json(self, candidate: Candidate, now: float) -> None:
        """Count a trace posted as JSON; one that is posted again does not count."""
        self._metrics.traces_received.inc()
        self._spans(candidate.spans, now)

    def complete(self, candidate: Candidate) -> None:
        """Count a trace that goes to its score."""
        self._metrics.normalise_failures.inc(candidate.trace is None)
        if candidate.trace is not None and not candidate.trace.final_answer.strip():
            self._metrics.without_answer.inc()

    def decided(self, decision: Decision, candidate: Candidate, now: float) -> None:
        """Count a decision that is on disk, and log it."""
        self._metrics.decided(decision)
        self._metrics.spans_duplicate.inc(candidate.duplicates)
        self._stats.decided(decision, now)
        _decision_log.info("%s %s", decision.decision, decision.trace_id, extra={"fields": decision.to_json()})

    def decided_before(self, decision: Decision, candidate: Candidate) -> None:
        """Count the spans, received now again, of a trace that a former process decided and perhaps not delivered."""
        if not candidate.is_json:
            spans = self._metrics.spans_kept if decision.decision == "keep" else self._metrics.spans_dropped
            spans.inc(candidate.spans)
            self._metrics.spans_duplicate.inc(candidate.duplicates)

    def moved(self, traces: int, spans: int) -> None:
        """Count traces that another worker goes on with."""
        self._metrics.traces_moved.inc(traces)
        self._metrics.spans_moved.inc(spans)

    def fault(self, of: object) -> None:
        """Count and log the exception being handled; what it met stays in the log and is taken in after a restart."""
        self._metrics.faults.inc()
        _log.exception("a fault while handling %s; the rest goes on", type(of).__name__)

    @contextlib.contextmanager
    def faults(self, of: object) -> Iterator[None]:
        """What fails inside costs itself alone."""
        try:
            yield
        except Exception:
            self.fault(of)

    def _spans(self, count: int, now: float) -> None:
        self._metrics.spans_received.inc(count)
        self._stats.received(count, now)
