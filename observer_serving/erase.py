"""A trace erased by its id everywhere the service keeps it: memory, record, log, spool, queues and dead letters.

Only its id stays, in the record, so that spans that come later do not make it anew. Erasing is repeatable: after a
crash in the middle, or when the disk refused, the same call finishes. What back ends store only they can erase.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from observer_core.errors import InputError, ObserverError
from observer_core.home import Home
from observer_serving.assemble import Assembler
from observer_serving.buffer.protocol import Buffer
from observer_serving.buffer.record import DecisionRecord
from observer_serving.buffer.wal import WriteAheadLog
from observer_serving.engine import Engine
from observer_serving.export import Exporter
from observer_serving.export.queue import EXPORT_FOLDER, DiskQueue
from observer_serving.metrics import Metrics
from observer_serving.spool import Spool, erase_rows
from observer_serving.storage import RECORD_FILE, WAL_FOLDER

ERASED = "erased"
"""The reason under which the metrics count an open trace that was erased."""
NOT_SHARED = (
    "traces are erased where buffer.kind is local; with nats the streams keep copies until buffer.record_age; lower it"
)
_BUSY_S = 0.05
_WAIT_S = 60.0


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
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._assembler = assembler
        self._record = record
        self._buffer = buffer
        self._spool = spool
        self._exporters = exporters
        self._metrics = metrics

    def erase(self, trace_id: bytes) -> Erased:
        """
        Raises:
            InputError: the buffer is shared: its streams hold copies that no replica can take out.
            ObserverError: the disk refuses, or the trace is being scored for longer than a minute; call again.
        """
        log = self._buffer
        if not isinstance(log, WriteAheadLog):
            raise InputError(NOT_SHARED)
        known = self._record.get(trace_id.hex())
        until = time.monotonic() + _WAIT_S
        while (decided := self._engine.call(lambda: self._forget(trace_id)).result(_WAIT_S)) is None:
            if time.monotonic() > until:
                raise ObserverError(f"trace {trace_id.hex()} is still being scored; erase it again in a moment")
            time.sleep(_BUSY_S)
        return Erased(
            trace_id=trace_id.hex(),
            decisions=int(decided),
            log_items=log.erase(trace_id),
            spool_rows=self._spool.erase(trace_id.hex()),
            queued=sum(exporter.erase(trace_id.hex()) for exporter in self._exporters),
            exported=known is not None and known.exported,
        )

    def _forget(self, trace_id: bytes) -> bool | None:
        """Take a trace out of memory and record, on the engine's thread; whether it was decided.

        `None`: it is being scored right now, ask again in a moment.
        """
        if trace_id in self._engine.in_flight:
            return None
        if self._record.lookup(trace_id) is not None:
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


def erase_offline(home: Home, trace_id: bytes, *, log: Path | None = None) -> Erased:
    """Erase a trace of a service that does not run; the caller holds its lock.

    Args:
        log: the folder of the write-ahead log, where it is not the default.
    """
    record = DecisionRecord(home.serving / RECORD_FILE)
    wal = WriteAheadLog(home.ensure(log or home.serving / WAL_FOLDER), lambda _: None)
    known = record.get(trace_id.hex())
    for _ in wal.replay():
        pass
    queued = 0
    for folder in sorted((home.serving / EXPORT_FOLDER).glob("*/")):
        queue = DiskQueue(folder, max_bytes=0)
        queued += queue.erase(trace_id.hex())
        queue.close()
    erased = Erased(
        trace_id=trace_id.hex(),
        decisions=int(record.erase(trace_id)),
        log_items=wal.erase(trace_id),
        spool_rows=erase_rows(home.spool, trace_id.hex()),
        queued=queued,
        exported=known is not None and known.exported,
    )
    record.close()
    return erased
