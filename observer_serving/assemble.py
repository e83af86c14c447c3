"""Group spans into traces and say when a trace is complete.

Pure bookkeeping: no threads, no I/O, the time is an argument. A trace is complete when a root has ended and no span
came for the quiet period, at the outer timeout, or at a cap; a trace that must leave early is decided, never lost.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from observer_core.decisions import CompleteReason
from observer_serving.receive.wire import SPAN_ID_BYTES, Piece, split_ids


@dataclass(frozen=True, slots=True)
class AssemblyLimits:
    """Seconds, spans, bytes, traces; `max_total_bytes` bounds all open traces together."""

    quiet_period: float = 2.0
    timeout: float = 60.0
    max_spans: int = 32_000
    max_bytes: int = 64 << 20
    max_open_traces: int = 100_000
    max_total_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class AssembledTrace:
    """A complete trace. Each of `pieces` is an `ExportTraceServiceRequest`; they may hold a span twice when
    `duplicates` > 0. They stay apart: joined, those of a huge trace would be copied and parsed in one long go.

    `span_ids` names each span once, 8 bytes each; `segments` are the log segments its pieces hold.
    """

    trace_id: bytes
    pieces: tuple[bytes, ...]
    span_ids: bytes
    duplicates: int
    complete_reason: CompleteReason
    received_ns: int
    completed_at: float
    segments: tuple[int, ...]

    @property
    def spans(self) -> int:
        return len(self.span_ids) // SPAN_ID_BYTES

    @property
    def size(self) -> int:
        """Bytes of the pieces."""
        return sum(map(len, self.pieces))


@dataclass(slots=True)
class _OpenTrace:
    received_ns: int
    first: float
    last: float
    root_ended: bool = False
    spans: int = 0
    size: int = 0
    duplicates: int = 0
    seen: set[bytes] | None = None  # built when a second piece comes: most traces come in one
    ids: bytearray = field(default_factory=bytearray)
    pieces: list[bytes] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    scheduled: float = float("inf")


class Assembler:
    """Open traces under `limits`; `now` is monotonic seconds."""

    def __init__(self, limits: AssemblyLimits) -> None:
        self._limits = limits
        self._open: OrderedDict[bytes, _OpenTrace] = OrderedDict()  # oldest first
        self._timers: list[tuple[float, bytes]] = []
        self.bytes = 0
        self.spans = 0
        """Spans taken in and not completed, duplicates too."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, trace_id: bytes) -> bool:
        return trace_id in self._open

    def add(
        self, piece: Piece, *, received_ns: int, segment: int, now: float, age: float = 0.0
    ) -> list[AssembledTrace]:
        """Take a piece in; returns the traces that a cap or an eviction completed.

        Args:
            age: seconds since the piece was received, above 0 when it is read back after a restart.
        """
        trace = self._open.get(piece.trace_id)
        if trace is None:
            trace = self._open[piece.trace_id] = _OpenTrace(received_ns, first=now - age, last=now)
        self._take(trace, piece, segment, now)
        done: list[AssembledTrace] = []
        if trace.spans >= self._limits.max_spans:
            done.append(self._complete(piece.trace_id, "span_cap", now))
        elif trace.size >= self._limits.max_bytes:
            done.append(self._complete(piece.trace_id, "byte_cap", now))
        else:
            self._schedule(piece.trace_id, trace)
        while len(self._open) > self._limits.max_open_traces or self.bytes > self._limits.max_total_bytes:
            done.append(self._complete(next(iter(self._open)), "evicted", now))
        return done

    def due(self, now: float) -> list[AssembledTrace]:
        """The traces that are complete at `now`."""
        done: list[AssembledTrace] = []
        while self._timers and self._timers[0][0] <= now:
            scheduled, trace_id = heapq.heappop(self._timers)
            trace = self._open.get(trace_id)
            if trace is None or trace.scheduled != scheduled:
                continue
            trace.scheduled = float("inf")
            if self._due_at(trace) > now:
                self._schedule(trace_id, trace)
                continue
            timed_out = trace.first + self._limits.timeout <= now and not self._is_quiet(trace, now)
            done.append(self._complete(trace_id, "timeout" if timed_out else "root_ended", now))
        return done

    def next_due(self) -> float | None:
        """The earliest moment at which `due` may have something; never too late, at times too early."""
        return self._timers[0][0] if self._timers else None

    def discard(self, covers: Callable[[bytes], bool]) -> tuple[int, int]:
        """Forget the open traces whose id `covers` says yes to; returns how many traces and spans that were."""
        ids = [trace_id for trace_id in self._open if covers(trace_id)]
        before = self.spans
        for trace_id in ids:
            self._complete(trace_id, "evicted", 0.0)
        return len(ids), before - self.spans

    def flush(self, reason: CompleteReason, now: float) -> list[AssembledTrace]:
        """Complete everything that is open."""
        return [self._complete(trace_id, reason, now) for trace_id in list(self._open)]

    def take_out(self, trace_id: bytes) -> AssembledTrace | None:
        """Take one open trace out undecided, because it is to be erased."""
        return self._complete(trace_id, "evicted", 0.0) if trace_id in self._open else None

    def _take(self, trace: _OpenTrace, piece: Piece, segment: int, now: float) -> None:
        trace.segments.append(segment)
        self.spans += piece.spans
        fresh = self._fresh(trace, piece)
        trace.duplicates += piece.spans - len(fresh) // SPAN_ID_BYTES
        if not fresh:  # a batch sent again: nothing new, and it does not prolong the wait
            return
        trace.ids += fresh
        trace.pieces.append(piece.data)
        trace.spans += len(fresh) // SPAN_ID_BYTES
        trace.size += len(piece.data)
        trace.root_ended |= piece.root_ended
        trace.last = now
        self.bytes += len(piece.data)

    def _fresh(self, trace: _OpenTrace, piece: Piece) -> bytes:
        """The ids of the piece's spans that the trace does not have, each once."""
        ids = split_ids(piece.span_ids)
        if not trace.ids:
            return piece.span_ids if len(set(ids)) == len(ids) else b"".join(dict.fromkeys(ids))
        if trace.seen is None:
            trace.seen = set(split_ids(trace.ids))
        fresh = dict.fromkeys(i for i in ids if i not in trace.seen)
        trace.seen.update(fresh)
        return b"".join(fresh)

    def _is_quiet(self, trace: _OpenTrace, now: float) -> bool:
        return trace.root_ended and trace.last + self._limits.quiet_period <= now

    def _due_at(self, trace: _OpenTrace) -> float:
        timeout = trace.first + self._limits.timeout
        return min(timeout, trace.last + self._limits.quiet_period) if trace.root_ended else timeout

    def _schedule(self, trace_id: bytes, trace: _OpenTrace) -> None:
        due = self._due_at(trace)
        if due < trace.scheduled:
            trace.scheduled = due
            heapq.heappush(self._timers, (due, trace_id))

    def _complete(self, trace_id: bytes, reason: CompleteReason, now: float) -> AssembledTrace:
        trace = self._open.pop(trace_id)
        self.bytes -= trace.size
        self.spans -= trace.spans + trace.duplicates
        return AssembledTrace(
            trace_id=trace_id,
            pieces=tuple(trace.pieces),
            span_ids=bytes(trace.ids),
            duplicates=trace.duplicates,
            complete_reason=reason,
            received_ns=trace.received_ns,
            completed_at=now,
            segments=tuple(trace.segments),
        )
