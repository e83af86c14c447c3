"""The one thread that owns a trace from the log to its decision: assemble → score → decide → record → deliver.

Everything reaches it through one queue (entries on disk, scores, outcomes of exports), so no state here needs a lock.
The order is what makes the promises hold: spans are on disk before they are seen here, a decision is on disk before
anything follows from it, and spans leave the disk only after their trace's decision has been delivered everywhere.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from observer_core.decisions import Decision
from observer_core.errors import ObserverError
from observer_serving.assemble import AssembledTrace, Assembler
from observer_serving.beside import Beside
from observer_serving.buffer.protocol import Logged
from observer_serving.buffer.received import JsonTrace
from observer_serving.buffer.record import DecisionRecord
from observer_serving.candidate import Candidate, from_json, is_large, read_spans
from observer_serving.clock import Clock
from observer_serving.decide import Decider
from observer_serving.deliver import DISK_ERRORS, Decided, Delivery, LatePiece
from observer_serving.events import Again, Arrived, Call, Event, Forget, Read, Resumed
from observer_serving.export import ExportOutcome
from observer_serving.flight import Flight, InFlight
from observer_serving.metrics import Metrics
from observer_serving.reader import Reader
from observer_serving.receive.wire import Piece
from observer_serving.resume import Undelivered
from observer_serving.score import Scored, Scoring, ShadowScore
from observer_serving.score.lane import earliest
from observer_serving.stats import Stats
from observer_serving.tally import Tally

log = logging.getLogger(__name__)

_MAX_EVENTS = 256
_RETRY_SECONDS = 1.0
_PAUSE_SECONDS = 0.01


class Engine:
    """Runs on its own thread after `start`; tests call `step` instead.

    Args:
        max_age: the most seconds that an entry taken in again counts as waited.
        max_backlog: bytes; `resume` waits while more than that is taken in and not dealt with.
        decides_open: whether `drain` decides what is open, or leaves it to another process.
        on_decided: told of every decision once it is on disk; must neither block nor raise.
    """

    def __init__(
        self,
        *,
        assembler: Assembler,
        scoring: Scoring,
        beside: Beside,
        decider: Decider,
        record: DecisionRecord,
        delivery: Delivery,
        release: Callable[[int, int], None],
        clock: Clock,
        metrics: Metrics,
        stats: Stats,
        max_age: float,
        max_backlog: int = 1 << 30,
        decides_open: bool = True,
        on_decided: Sequence[Callable[[Decision, Candidate], None]] = (),
    ) -> None:
        self._assembler = assembler
        self._scoring = scoring
        self._beside = beside
        self._decider = decider
        self._record = record
        self._delivery = delivery
        self._release = release
        self._clock = clock
        self._metrics = metrics
        self._tally = Tally(metrics, stats)
        self._max_age = max_age
        self._max_backlog = max_backlog
        self._decides_open = decides_open
        self._on_decided = on_decided
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.in_flight = InFlight()
        self._reader = Reader(self._events.put)
        self._undelivered = Undelivered()
        delivery.resuming = self._undelivered.resuming
        self._put_bytes = self._taken_bytes = 0  # each written by one thread at a time
        self._scored: deque[Scored] = deque()
        self._decided: deque[tuple[Decision, Scored]] = deque()
        self._outcomes: deque[ExportOutcome] = deque()
        self._retry_at: float | None = None
        self._stopping, self._out_of_time = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer-engine", daemon=True)
        self.failure: str | None = None
        """Why decisions cannot be written down at the moment; `None` when they can."""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def open_traces(self) -> int:
        return len(self._assembler) + len(self.in_flight)

    @property
    def backlog_bytes(self) -> int:
        """Bytes accepted and not delivered yet, open traces apart: what a slow scorer, disk or back end lets grow."""
        return self._put_bytes - self._taken_bytes + self.in_flight.bytes + self._delivery.pending_bytes

    def accept(self, entries: list[Logged]) -> None:
        """Take entries that are safe; called by the buffer's thread."""
        self._put_bytes += sum(entry.received.size for entry in entries)
        self._events.put(Arrived(entries))

    def accept_again(self, entries: list[Logged], part: int) -> None:
        """Take entries that an engine had before: what is undecided goes on, what was decided stays decided."""
        self._put_bytes += sum(entry.received.size for entry in entries)
        for entry in entries:
            self._events.put(Again(entry, part))

    def resumed(self, part: int) -> threading.Event:
        """All entries of a part have been taken in again: deliver its decisions that may not have been. The event is
        set once this has been dealt with."""
        done = threading.Event()
        self._events.put(Resumed(part, done))
        return done

    def forget(self, part: int, covers: Callable[[bytes], bool]) -> None:
        """Let another engine go on with the traces that `covers` says yes to."""
        self._events.put(Forget(part, covers))

    def put(self, event: Event) -> None:
        """Hand over an event, from any thread."""
        self._events.put(event)

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Run something on the engine's thread, which alone may write the record; from any thread."""
        result: Future[Any] = Future()
        self._events.put(Call(function, result))
        return result

    def deliver_now(self) -> None:
        """For calls on this thread: hand over all that is decided, or raise `ObserverError` if the disk refuses."""
        self._write_down(self._clock.monotonic(), aside=False)
        if self.failure is not None:
            raise ObserverError(f"{self.failure}; try again when it can write")
        self._delivery.settle()

    def start(self) -> None:
        self._thread.start()

    def drain(self, seconds: float) -> None:
        """Decide what is open (`shutdown`) or leave it to another process, and deliver what is decided, within
        `seconds`; what is left then waits in the buffer."""
        self._stopping.set()
        self._events.put(None)
        self._thread.join(timeout=seconds)
        if self._thread.is_alive():
            log.warning("not everything was decided within the drain deadline; the rest is decided after the restart")
            self._out_of_time.set()
            self._events.put(None)
            self._thread.join()  # what it writes to is closed next; it ends with the step it is in

    # -- after a restart

    def resume(self, entries: Iterable[Logged]) -> None:
        """Take the log in again and return when that is done: open traces go on, undelivered decisions are delivered as
        recorded. Waits now and then, so that a log larger than memory can be read back."""
        for entry in entries:
            self.accept_again([entry], 0)
            while self.alive and self.backlog_bytes > self._max_backlog:
                time.sleep(_PAUSE_SECONDS)
        done = self.resumed(0)
        if self.alive:
            done.wait()
        else:
            self.step()

    def _take_again(self, again: Again, now: float) -> None:
        self._undelivered.begin(again.part)
        entry = again.entry
        age = min(max(0.0, (self._clock.now_ns() - entry.received.received_ns) / 1e9), self._max_age)
        for item in entry.received.items:
            recorded = self._record.lookup(item.trace_id)
            if recorded is not None and not self._record.is_settled(recorded):
                self._undelivered.add(again.part, recorded, entry, item)
            else:
                self._receive(entry, item, now, age, decided=recorded is not None)

    def _deliver_again(self, resumed: Resumed, now: float) -> None:
        decisions = 0
        for recorded, candidate, late in self._undelivered.take(resumed.part, now):
            self._delivery.add([Decided(recorded.row, recorded.decision, candidate)])
            self._tally.decided_before(recorded.decision, candidate)
            for piece in late:
                self._delivery.add_late(piece)
            decisions += 1
        log.info("taken in again: %d open traces, %d decisions to deliver again", self.open_traces, decisions)
        resumed.done.set()

    def _forget(self, forget: Forget) -> None:
        undelivered = self._undelivered.forget(forget.part)
        traces, spans = self._assembler.discard(forget.covers)
        flights = [self._give_up(trace_id) for trace_id in list(self.in_flight) if forget.covers(trace_id)]
        self._tally.moved(traces + len(flights), undelivered + spans + sum(one.spans for one in flights))

    def _give_up(self, trace_id: bytes) -> Flight:
        """Take a trace off those that are complete and not yet on record."""
        gone = self.in_flight.take(trace_id)
        self._beside.forget(gone.candidate.trace_id)
        return gone

    # -- the loop

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step(self._wait())
            except Exception as error:
                self.failure = f"a fault in the engine ({error!r}); its log says more"
                self._tally.fault(self)
                self._stopping.wait(_RETRY_SECONDS)  # it may well meet the same again
        try:
            self._finish()
        except Exception:
            log.exception("a fault while draining; what was not decided is in the log")

    def _wait(self) -> list[Event]:
        """The next events, after at most the time until something is due."""
        write_down = self._delivery.next_due() if self._retry_at is None else self._retry_at
        due = [self._assembler.next_due(), self._scoring.next_deadline(), self._beside.next_deadline(), write_down]
        first = earliest(due)
        timeout = None if first is None else max(0.0, first - self._clock.monotonic())
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=timeout))
            while len(events) < _MAX_EVENTS:
                events.append(self._events.get_nowait())
        return events

    def step(self, events: list[Event] | None = None) -> None:
        """Handle events (all that wait, when not given) and everything that is due."""
        events = [self._events.get_nowait() for _ in range(self._events.qsize())] if events is None else events
        now = self._clock.monotonic()
        for event in events:
            with self._tally.faults(event):
                self._handle(event, now)
        for assembled in self._assembler.due(now):
            self._complete(assembled)
        self._scored.extend(self._beside.scored(self._scoring.expire(now)))
        self._scored.extend(self._beside.expire(now))
        self._write_down(now, aside=self.alive)
        self._show()

    def _handle(self, event: Event, now: float) -> None:
        if isinstance(event, Arrived):
            self._take(event.entries, now)
        elif isinstance(event, Again):
            self._taken_bytes += self._tally.received([event.entry], now)
            self._take_again(event, now)
        elif isinstance(event, Resumed):
            self._deliver_again(event, now)
        elif isinstance(event, Forget):
            self._forget(event)
        elif isinstance(event, Read):
            self._go_on(event)
        elif isinstance(event, list):
            self._scored.extend(self._beside.heard(event))
        elif isinstance(event, ShadowScore):
            self._beside.shadowed(event)
        elif isinstance(event, ExportOutcome):
            self._outcomes.append(event)
        elif isinstance(event, Call):
            event.run()

    # -- stages

    def _take(self, entries: list[Logged], now: float) -> None:
        self._taken_bytes += self._tally.received(entries, now)
        ids = {item.trace_id for entry in entries for item in entry.received.items}
        new = [trace_id for trace_id in ids if trace_id not in self._assembler and trace_id not in self.in_flight]
        decided = self._record.decided(new) if new else set()
        for entry in entries:
            for item in entry.received.items:
                try:
                    self._receive(entry, item, now, age=0.0, decided=item.trace_id in decided)
                except Exception:  # a commit holds the entries of many clients
                    self._tally.fault(item)

    def _receive(self, entry: Logged, item: Piece | JsonTrace, now: float, age: float, *, decided: bool) -> None:
        is_json = isinstance(item, JsonTrace)
        is_open = item.trace_id in self._assembler
        if self._record.erased(item.trace_id):
            self._metrics.spans_dropped.inc(0 if is_json else item.spans)
            self._release(entry.segment, 1)
        elif is_json and (is_open or item.trace_id in self.in_flight or decided):
            self._release(entry.segment, 1)  # posted again
        elif is_json:
            candidate = from_json(item, received_ns=entry.received.received_ns, segment=entry.segment, now=now)
            self._tally.received_json(candidate, now)
            self._metrics.completed.labels(candidate.complete_reason).inc()
            self.in_flight.add(item.trace_id, candidate)
            self._submit(candidate)
        elif item.trace_id in self.in_flight:
            self.in_flight.add_late(item.trace_id, LatePiece(item, entry.segment))
        elif decided:
            self._delivery.add_late(LatePiece(item, entry.segment))
        else:
            if not is_open:
                self._tally.opened()
            for assembled in self._assembler.add(
                item, received_ns=entry.received.received_ns, segment=entry.segment, now=now, age=age
            ):
                self._complete(assembled)

    def _complete(self, assembled: AssembledTrace) -> None:
        large = self.alive and is_large(assembled)
        candidate = self._reader.submit(assembled) if large else read_spans(assembled)
        self._metrics.completed.labels(candidate.complete_reason).inc()
        self.in_flight.add(assembled.trace_id, candidate)
        if not large:
            self._submit(candidate)

    def _go_on(self, read: Read) -> None:
        if self.in_flight.has(read.unread):
            self.in_flight.replace(read.unread, read.candidate)
            self._submit(read.candidate)

    def _submit(self, candidate: Candidate) -> None:
        self._beside.submit(candidate)
        self._tally.complete(candidate)
        self._scoring.submit(candidate)

    def _write_down(self, now: float, *, aside: bool) -> None:
        """Decide, record, deliver; when the disk refuses, all stays as it is and is tried again. See `Delivery.run`."""
        if self._retry_at is not None and now < self._retry_at:
            return
        try:
            while self._scored:
                if self.in_flight.has(self._scored[0].candidate):
                    self._decided.append((self._decider.decide(self._scored[0]), self._scored[0]))
                self._scored.popleft()
            if self._decided:
                self._record_decisions(now)
            if self._beside.late:
                self._delivery.note_shadows(self._beside.late)
            self._delivery.run(now, aside=aside)
            if self._outcomes:
                self._delivery.note_outcomes(self._outcomes)
        except DISK_ERRORS as error:
            self._retry_at = now + _RETRY_SECONDS
            self.failure = f"cannot write decisions down: {error}"
            log.error("%s; trying again", self.failure)
        else:
            self._retry_at = self.failure = None

    def _record_decisions(self, now: float) -> None:
        ours = [(decision, scored) for decision, scored in self._decided if self.in_flight.has(scored.candidate)]
        rows = self._record.add([(decision, scored.candidate.span_ids) for decision, scored in ours])
        self._decided.clear()
        for row, (decision, scored) in zip(rows, ours, strict=True):
            flight = self._give_up(bytes.fromhex(decision.trace_id))
            if row is None:  # another worker has the trace and decides it
                self._tally.moved(1, flight.spans)
                continue
            self._delivery.add([Decided(row, decision, scored.candidate)])
            for piece in flight.late:
                self._delivery.add_late(piece)
            self._tally.decided(decision, scored.candidate, now)
            for tell in self._on_decided:
                tell(decision, scored.candidate)

    def _show(self) -> None:
        self._tally.show()
        self._metrics.traces_open.set(self.open_traces)
        self._metrics.spans_open.set(self._assembler.spans + self.in_flight.spans + self._delivery.late_spans)
        self._metrics.waiting_traces.set(self._scoring.waiting)
        self._metrics.held_bytes.set(self._assembler.bytes + self.backlog_bytes)

    # -- the end

    def _finish(self) -> None:
        """Deal with what is left; ends when all is delivered (the caller waits no longer than the drain deadline)."""
        self.step()
        if self._decides_open:
            for assembled in self._assembler.flush("shutdown", self._clock.monotonic()):
                if not self._out_of_time.is_set():
                    self._complete(assembled)
        while (self.in_flight or self._delivery.pending) and not self._out_of_time.is_set():
            self.step(self._wait())
        self._delivery.settle()
        self.step()
