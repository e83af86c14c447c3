"""After the decision: hand kept traces to the exporters, everything to the spool, late spans where their trace went.

Decisions are delivered in the order of their rows; a large trace is written into the exporters' queues beside the
engine, and those after it wait, decided, until that is done. A row is *settled* once every exporter has it in its own
queue on disk and the spool's files are sealed; only then is the log allowed to forget the spans. A crash before that
delivers again from the log with the recorded decision: at least once, the same decision, the same span ids. A trace, or
late spans, that cannot be delivered for a fault of ours are set aside on disk, or nothing behind them would ever be.
"""

import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from observer_core.decisions import Decision
from observer_core.errors import ObserverError
from observer_serving.buffer.record import DecisionRecord, Recorded
from observer_serving.candidate import Candidate, is_large, parse_spans
from observer_serving.export import Exporter, ExportItem, ExportOutcome, decorate_root
from observer_serving.metrics import Metrics
from observer_serving.receive.wire import SPAN_ID_BYTES, Piece, split_ids
from observer_serving.score import ShadowScore
from observer_serving.score.lane import earliest
from observer_serving.spool import Spool
from observer_serving.undeliverable import Undeliverable

log = logging.getLogger(__name__)

DISK_ERRORS = (OSError, ObserverError, sqlite3.Error)
"""What a disk that refuses is told by: it may take the same again later."""
_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that is on disk, and what it was about."""

    row: int
    decision: Decision
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class LatePiece:
    """Spans that came after their trace was decided."""

    piece: Piece
    segment: int


class Delivery:
    """Owned by the engine's thread. Every method may raise `OSError` or `ObserverError` (disk full): nothing is lost,
    what was not delivered stays in the queue for the next call."""

    def __init__(
        self,
        record: DecisionRecord,
        release: Callable[[int, int], None],
        spool: Spool,
        exporters: Sequence[Exporter],
        undeliverable: Undeliverable,
        metrics: Metrics,
        *,
        settle_after: float,
        settle_rows: int,
        settle_bytes: int = 1 << 30,
    ) -> None:
        """
        Args:
            settle_after, settle_rows, settle_bytes: seconds, decisions, or bytes of their traces after which to settle;
                what a restart has to deliver again, and holds in memory for that, is no more.
        """
        self._record = record
        self._release = release
        self._spool = spool
        self._exporters = exporters
        self._undeliverable = undeliverable
        self._metrics = metrics
        self._settle_after = settle_after
        self._settle_rows = settle_rows
        self._settle_bytes = settle_bytes
        self._waiting: deque[Decided] = deque()
        self._head_submitted: set[str] = set()  # exporters that have the first of them already
        self._handing_over: Future[None] | None = None  # the first of them, where that takes long
        self._look_again: float | None = None  # when to see whether it is done
        self._helper = ThreadPoolExecutor(1, "observer-delivery")  # has no thread before there is something to do
        self.pending_bytes = 0
        """Bytes of the traces whose decision is on disk and not delivered."""
        self._late: deque[LatePiece] = deque()
        self._late_forwarded: deque[_Forwarded] = deque()  # of the first of them
        self._late_seen: dict[bytes, set[bytes]] = {}  # the ids of their traces' spans, with those not on record yet
        self._late_submitted: set[str] = set()  # exporters that have the next one already
        self._unsettled: list[tuple[int, str, tuple[int, ...]]] = []
        self._unsettled_bytes = 0
        self._since: float | None = None  # when the oldest thing that is not settled was done
        self.resuming: Callable[[], bool] = bool
        """Whether decisions that may not have been delivered are still being read back: settling those that were made
        meanwhile would settle them, since a row is settled with all before it."""

    @property
    def pending(self) -> int:
        """How many decisions are on disk and not delivered."""
        return len(self._waiting) + len(self._late)

    @property
    def late_spans(self) -> int:
        """Spans that came late and are not dealt with yet."""
        return sum(late.piece.spans for late in self._late)

    def add(self, decided: Sequence[Decided]) -> None:
        self._waiting.extend(decided)
        self.pending_bytes += sum(one.candidate.size for one in decided)

    def add_late(self, late: LatePiece) -> None:
        self._late.append(late)

    def next_due(self) -> float | None:
        """When `run` has something to do."""
        return earliest([self._look_again, self._settling_due()])

    def _settling_due(self) -> float | None:
        return None if self._since is None or self.resuming() else self._since + self._settle_after

    def run(self, now: float, *, aside: bool) -> None:
        """Deliver what waits; settle when it is time.

        Args:
            aside: whether large traces may be handed over on another thread, and `run` be called until they are.
        """
        self._look_again = None
        while self._waiting:
            try:
                if not self._hand_over(self._waiting[0], aside=aside):
                    self._look_again = now + _LOOK_AGAIN_S
                    break
                self._put_into_spool(self._waiting[0])
            except DISK_ERRORS:
                raise
            except Exception:
                self._set_aside(self._undeliverable.put(self._waiting[0].candidate))
                self._spool.add_decision(self._waiting[0].decision)
            decided = self._waiting.popleft()
            self._head_submitted.clear()
            self.pending_bytes -= decided.candidate.size
            self._unsettled.append((decided.row, decided.decision.trace_id, decided.candidate.segments))
            self._unsettled_bytes += decided.candidate.size
            if self._unsettled_bytes >= self._settle_bytes and not self.resuming():
                self.settle()
        if self._late and not self._waiting:
            self._deliver_late()
        if self._since is None and (self._spool.waiting or self._unsettled):
            self._since = now
        due = self._settling_due()
        if due is not None and (now >= due or len(self._unsettled) >= self._settle_rows):
            self.settle()

    def settle(self) -> None:
        """Seal the spool and let the log forget what has been delivered."""
        self._spool.flush()
        if self.resuming():
            return
        self._since = None
        if not self._unsettled:
            return
        self._record.settle([(row, trace_id) for row, trace_id, _ in self._unsettled])
        held: dict[int, int] = {}
        for _, _, segments in self._unsettled:
            for segment in segments:
                held[segment] = held.get(segment, 0) + 1
        self._unsettled = []
        self._unsettled_bytes = 0
        for segment, items in held.items():
            self._release(segment, items)

    def note_shadows(self, late: deque[ShadowScore]) -> None:
        """Write shadow scores that came after their decision into the record, and into the spool's row if no file has
        it yet; takes them off `late` as it goes."""
        self._record.add_shadows([(score.trace_id, score.name, score.record) for score in late])
        while late:
            score = late.popleft()
            if not self._spool.add_shadow(score.trace_id, score.name, score.record):
                self._metrics.shadow_scores.labels(score.name, "late").inc()

    def note_outcomes(self, outcomes: deque[ExportOutcome]) -> None:
        """Write what became of exports into record and spool; takes them off `outcomes` as it goes."""
        self._record.set_exported([outcome.trace_id for outcome in outcomes if outcome.outcome == "exported"])
        while outcomes:
            outcome = outcomes[0]
            self._metrics.exports.labels(outcome.exporter, outcome.outcome).inc()
            self._spool.add_export(
                trace_id=outcome.trace_id,
                exporter=outcome.exporter,
                outcome=outcome.outcome,
                spans=outcome.spans,
                at=outcome.at,
            )
            outcomes.popleft()

    def _hand_over(self, decided: Decided, *, aside: bool) -> bool:
        """Give a trace to all exporters, if it is kept; whether they have it."""
        if decided.decision.decision != "keep" or not self._exporters:
            return True
        if self._handing_over is None:
            if not (aside and is_large(decided.candidate)):
                self._submit(decided)
                return True
            self._handing_over = self._helper.submit(self._submit, decided)
        if aside and not self._handing_over.done():
            return False
        done, self._handing_over = self._handing_over, None
        done.result()
        return True

    def _submit(self, decided: Decided) -> None:
        decision, candidate = decided.decision, decided.candidate
        spans = decorate_root(candidate.resource_spans(), candidate.root_span_id, decision)
        for exporter in self._exporters:
            if spans and exporter.name not in self._head_submitted:
                exporter.submit(ExportItem(decision, spans))
                self._head_submitted.add(exporter.name)

    def _put_into_spool(self, decided: Decided) -> None:
        decision, candidate = decided.decision, decided.candidate
        kept = candidate.trace if decision.decision == "keep" else None
        root = candidate.root_span_id.hex() if candidate.root_span_id else ""
        self._spool.add_decision(decision, kept, root_span_id=root)

    def _set_aside(self, file: Path) -> None:
        """Called where an exception is handled, with the file that has what could not be delivered."""
        self._metrics.faults.inc()
        log.exception("a fault while delivering trace %s, set aside in %s", file.name.partition(".")[0], file)

    def _deliver_late(self) -> None:
        """Forward or drop late spans; spans their trace already has are only counted as duplicates.

        When the disk refuses, what has been forwarded is known, for the next time: it is forwarded and counted once.
        """
        while len(self._late_forwarded) < len(self._late):
            self._late_forwarded.append(self._forward_late(self._late[len(self._late_forwarded)].piece))
            self._late_submitted.clear()
        new = [(late.recorded, late.fresh) for late in self._late_forwarded if late.recorded and late.fresh]
        self._record.add_late(new)
        self._late_seen.clear()
        while self._late_forwarded:
            self._count_late(self._late_forwarded.popleft())
            self._release(self._late.popleft().segment, 1)

    def _forward_late(self, piece: Piece) -> "_Forwarded":
        recorded = self._record.lookup(piece.trace_id)
        if recorded is None:  # erased, or forgotten for its age, while this waited
            return _Forwarded(piece.spans, None, b"")
        seen = self._late_seen.setdefault(piece.trace_id, set(split_ids(recorded.span_ids)))
        fresh = [span_id for span_id in dict.fromkeys(split_ids(piece.span_ids)) if span_id not in seen]
        if fresh and recorded.decision.decision == "keep":
            try:
                self._submit_late(piece, set(fresh))
            except DISK_ERRORS:
                raise
            except Exception:
                self._set_aside(self._undeliverable.put_late(piece))
        seen.update(fresh)
        return _Forwarded(piece.spans, recorded, b"".join(fresh))

    def _submit_late(self, piece: Piece, fresh: set[bytes]) -> None:
        spans = parse_spans(piece.data, only=fresh)
        for exporter in self._exporters:
            if exporter.name not in self._late_submitted:
                exporter.submit(ExportItem(None, spans))
                self._late_submitted.add(exporter.name)

    def _count_late(self, late: "_Forwarded") -> None:
        fresh = len(late.fresh) // SPAN_ID_BYTES
        verdict = late.recorded.decision.decision if late.recorded else "drop"
        if late.recorded is None:
            fresh = late.spans
        else:
            self._metrics.spans_late.labels(verdict).inc(fresh)
            self._metrics.spans_duplicate.inc(late.spans - fresh)
        (self._metrics.spans_kept if verdict == "keep" else self._metrics.spans_dropped).inc(fresh)


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """A late piece that the exporters have, as far as it is for them: how many spans it has, the decision about their
    trace (`None` if that is forgotten), and the ids of those that are new."""

    spans: int
    recorded: Recorded | None
    fresh: bytes
