"""A trace erased by its id everywhere the service keeps it: memory, record, log, spool, queues and dead letters.

Only its id stays, in the record, so that spans that come later do not make it anew. Erasing is repeatable: after a
crash in the middle, or when the disk refused, the same call finishes. What back ends store only they can erase. Where
several processes share a record, each hears of it there and erases the trace from its own files; one that is down does
so when it comes back.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from observer_core.errors import ObserverError
from observer_core.home import Home
from observer_serving.assemble import Assembler
from observer_serving.buffer.protocol import Buffer, Intake
from observer_serving.buffer.record import DecisionRecord
from observer_serving.config import Settings
from observer_serving.engine import Engine
from observer_serving.export import Exporter
from observer_serving.export.queue import EXPORT_FOLDER, DiskQueue
from observer_serving.metrics import Metrics
from observer_serving.spool import Spool
from observer_serving.storage import open_storage
from observer_serving.undeliverable import UNDELIVERABLE_FOLDER, Undeliverable

log = logging.getLogger(__name__)

ERASED = "erased"
"""The reason under which the metrics count an open trace that was erased."""
_BUSY_S = 0.05
_WAIT_S = 60.0
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Erased:
    """What was removed: decisions (0 or 1), items of the log, rows of the spool, files of export queues."""

    trace_id: str
    decisions: int
    log_items: int
    spool_rows: int
    queued: int
    exported: bool

    @property
    def found(self) -> bool:
        return bool(self.decisions or self.log_items or self.spool_rows or self.queued)


class Eraser:
    """Erases traces of a running service; calls come from any thread but the engine's."""

    def __init__(
        self,
        engine: Engine,
        assembler: Assembler,
        record: DecisionRecord,
        buffer: Buffer,
        spool: Spool,
        exporters: Sequence[Exporter],
        undeliverable: Undeliverable,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._assembler = assembler
        self._record = record
        self._buffer = buffer
        self._spool = spool
        self._exporters = exporters
        self._undeliverable = undeliverable
        self._metrics = metrics
        self._told: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer-eraser", daemon=True)

    def start(self) -> None:
        """Erase, on a thread of its own, what other processes say was erased, and what they said before."""
        self._record.on_erased = self._told.put
        for trace_id in self._record.erasing():
            self._told.put(trace_id)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._told.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=_RETRY_S)

    def erase(self, trace_id: bytes) -> Erased:
        """
        Raises:
            ObserverError: the disk or NATS refuses, or the trace is being scored for longer than a minute; call again.
        """
        known = self._record.get(trace_id.hex())
        # A server overwrites what is deleted, but only forgets what is acknowledged, as the engine will do.
        log_items = self._buffer.erase(trace_id) if self._buffer.shared else 0
        until = time.monotonic() + _WAIT_S
        while (decided := self._engine.call(lambda: self._forget(trace_id)).result(_WAIT_S)) is None:
            if time.monotonic() > until:
                raise ObserverError(f"trace {trace_id.hex()} is still being scored; erase it again in a moment")
            time.sleep(_BUSY_S)
        erased = Erased(
            trace_id=trace_id.hex(),
            decisions=int(decided),
            log_items=log_items + self._buffer.erase(trace_id),
            spool_rows=self._spool.erase(trace_id.hex()),
            queued=sum(keeper.erase(trace_id.hex()) for keeper in (*self._exporters, self._undeliverable)),
            exported=known is not None and known.exported,
        )
        self._record.finish_erasing(trace_id)
        return erased

    def _forget(self, trace_id: bytes) -> bool | None:
        """Take a trace out of memory and record, on the engine's thread; whether it was decided.

        `None`: it is being scored right now, ask again in a moment.
        """
        if trace_id in self._engine.in_flight:
            return None
        self._engine.deliver_now()
        decided = self._record.erase(trace_id)
        discarded = self._assembler.take_out(trace_id)
        if discarded is not None:
            self._metrics.traces_dropped.labels(ERASED).inc()
            self._metrics.spans_dropped.inc(discarded.spans)
            self._metrics.spans_duplicate.inc(discarded.duplicates)
            for segment in discarded.segments:
                self._buffer.release(segment, 1)
        return decided

    def _run(self) -> None:
        while not self._stopping.is_set():
            trace_id = self._told.get()
            if trace_id is None:
                return
            try:
                erased = self.erase(trace_id)
            except Exception as error:  # a disk that refuses now may not in a moment; it is asked for until it is done
                log.warning("cannot erase trace %s yet: %s", trace_id.hex(), str(error) or type(error).__name__)
                self._told.put(trace_id)
                self._stopping.wait(_RETRY_S)
            else:
                log.info("erased a trace as another process asked", extra={"fields": asdict(erased)})


def erase_offline(settings: Settings, home: Home, trace_id: bytes) -> Erased:
    """Erase a trace of a service that does not run; the caller holds its lock.

    Raises:
        InputError, ObserverError: its record or NATS cannot be used.
    """
    storage = open_storage(settings, home.ensure(home.serving), _nobody, works=False)
    try:
        for _ in storage.buffer.replay():
            pass
        known = storage.record.get(trace_id.hex())
        queued = Undeliverable(home.serving / UNDELIVERABLE_FOLDER).erase(trace_id.hex())
        for folder in sorted((home.serving / EXPORT_FOLDER).glob("*/")):
            waiting = DiskQueue(folder, max_bytes=0)
            queued += waiting.erase(trace_id.hex())
            waiting.close()
        erased = Erased(
            trace_id=trace_id.hex(),
            decisions=int(storage.record.erase(trace_id)),
            log_items=storage.buffer.erase(trace_id),
            spool_rows=Spool(home.spool, max_rows=1, max_age_s=0.0).erase(trace_id.hex()),
            queued=queued,
            exported=known is not None and known.exported,
        )
        storage.record.finish_erasing(trace_id)
        return erased
    finally:
        storage.record.close()
        storage.close()


def _nobody() -> Intake:
    raise AssertionError("a buffer that was not started hands nothing over")
