"""What every exporter shares: a queue on disk in front of a back end that may be slow, down or picky.

A back end that is down costs delay, not traces: items wait in a queue on disk and are sent oldest first, in batches
below the back end's limit, until they are accepted. A batch the back end refuses is split in half down to the one trace
it refuses, which goes to the dead letters with the back end's answer (`observer deadletter`); all others get through.
"""

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from observer_core.errors import ObserverError
from observer_serving.export.answer import Answer, Verdict
from observer_serving.export.item import ExporterStats, ExportItem, ExportOutcome, OnOutcome
from observer_serving.export.queue import DiskQueue, Entry
from observer_serving.export.split import split_request

log = logging.getLogger(__name__)

_IDLE_S = 1.0
"""How often an idle exporter looks for replayed dead letters."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Limits and pace; the defaults suit a Phoenix on the same machine.

    Attributes:
        max_batch_bytes: request size before compression; gRPC servers take 4 MiB unless told otherwise.
        max_batch_spans: Phoenix inserts in batches of 1,000.
        traces_per_second: a bound on the pace; off by default.
        server_errors: how often a batch may break the back end before it is split.
    """

    timeout_s: float = 10.0
    max_batch_bytes: int = (4 << 20) - (64 << 10)
    max_batch_spans: int = 1000
    max_queue_bytes: int = 8 << 30
    traces_per_second: float | None = None
    retry_first_s: float = 0.5
    retry_max_s: float = 30.0
    server_errors: int = 3


class QueuedExporter(ABC):
    """One back end. `submit` may be called from any thread; a thread of its own delivers.

    Args:
        folder: its queue and dead letters; no other process may use it.
        on_outcome: told what became of each item, at least once, from the exporter's thread.
    """

    def __init__(
        self, name: str, folder: Path, *, options: ExportOptions = ExportOptions(), on_outcome: OnOutcome | None = None
    ) -> None:
        self.name = name
        self._options = options
        self._on_outcome = on_outcome
        self._queue = DiskQueue(folder, max_bytes=options.max_queue_bytes)
        self._stats = ExporterStats()
        self._wake = threading.Event()
        self._deadline: float | None = None
        self._not_before = 0.0
        self._thread = threading.Thread(target=self._run, name=f"export-{name}", daemon=True)

    # -- what a back end's protocol adds

    @abstractmethod
    def _prepare(self, body: bytes) -> bytes:
        """The request as it is sent, each time it is sent."""

    @abstractmethod
    def _post(self, prepared: bytes) -> Answer:
        """Send it once."""

    @abstractmethod
    def _post_nothing(self) -> Answer:
        """Send a request without spans, to see whether the back end works at all."""

    @abstractmethod
    def _close(self) -> None:
        """Let connections go."""

    def _accepted(self, entry: Entry, header: dict[str, Any]) -> None:
        """The back end has taken an item."""
        self._finished(entry, header)
        self._queue.done(entry)

    def _more_work(self) -> bool:
        """What is to be done besides sending; whether anything was."""
        return False

    def _more_due(self) -> float:
        """When there may be more work again (monotonic seconds)."""
        return 0.0

    # -- what every exporter does

    def submit(self, item: ExportItem) -> None:
        """Take an item over: when this returns it survives a crash.

        Raises:
            ObserverError: the disk refused it or the queue is full; the caller still owns the item.
        """
        # Joined by concatenation (see `_deliver`): encoding all groups of a large trace in one go would hold up others.
        body = b"".join(ExportTraceServiceRequest(resource_spans=[g]).SerializeToString() for g in item.resource_spans)
        header = {
            "trace_id": item.decision.trace_id if item.decision else item.trace_id,
            "decision": item.decision.to_json() if item.decision else None,
        }
        self._queue.put(header, body, item.spans)
        self._wake.set()

    def start(self) -> None:
        """Begin to deliver, first what an earlier process left."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Deliver what can be delivered within the time; the rest stays on disk for the next start."""
        self._deadline = time.monotonic() + timeout_s
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s + self._options.timeout_s)
        self._close()
        self._queue.close()

    def erase(self, trace_id: str) -> int:
        """Forget what waits, or was refused, of a trace; what was sent already only the back end can erase."""
        return self._queue.erase(trace_id)

    def probe(self) -> str | None:
        """Ask the back end once, without sending anything; what is wrong, `None` if it answers well."""
        answer = self._post_nothing()
        return None if answer.verdict in (Verdict.ACCEPTED, Verdict.REFUSED) else str(answer)

    def stats(self) -> ExporterStats:
        """Counts since the start and the queue as it is now."""
        items, size, age = self._queue.depth()
        return replace(self._stats, queued_items=items, queued_bytes=size, oldest_age_s=age)

    # -- the exporter's thread

    def _run(self) -> None:
        failures = 0
        while not self._is_over():
            try:
                if not self._work():
                    if self._deadline is not None:
                        return
                    due_in = self._more_due() - time.monotonic()
                    self._wake.wait(due_in if 0 < due_in < _IDLE_S else _IDLE_S)
                    self._wake.clear()
                    self._queue.rescan()
                failures = 0
            except Exception as error:  # a thread that dies silently would stop all export
                if not isinstance(error, ObserverError | OSError):
                    log.exception("exporter %s failed", self.name)
                self._stats.last_error = str(error)
                self._pause(self._delay(failures))
                failures += 1

    def _work(self) -> bool:
        """Send one batch and do what else is due; whether there was anything to do."""
        options = self._options
        batch: list[Entry] = []
        if time.monotonic() >= self._not_before:
            rate = options.traces_per_second
            batch = self._queue.oldest(
                max_bytes=options.max_batch_bytes,
                max_spans=options.max_batch_spans,
                max_items=options.max_batch_spans if rate is None else max(1, int(rate)),
            )
            if batch:
                self._deliver(batch)
                if rate is not None:
                    self._not_before = time.monotonic() + len(batch) / rate
        return self._more_work() or bool(batch)

    def _deliver(self, entries: Sequence[Entry]) -> None:
        """Send entries until they are accepted or dead; returns early only when the exporter stops."""
        readable: list[Entry] = []
        bodies: list[bytes] = []
        decided: list[dict[str, Any]] = []
        for entry in entries:
            try:
                header, body = entry.read()
            except ObserverError as error:
                log.error("exporter %s: %s", self.name, error)
                self._queue.set_aside(entry)
                continue
            readable.append(entry)
            bodies.append(body)
            decided.append(header)
        if not readable:
            return
        # Repeated fields of protobuf messages join by concatenation, so the spans' bytes stay as they are.
        # One trace may be too large for a request by itself: its spans then go in several.
        answer: Answer | None = None
        for body in split_request(b"".join(bodies), self._options.max_batch_bytes):
            answer = self._send_until_judged(body, len(readable))
            if answer is None:
                return
            if answer.verdict is not Verdict.ACCEPTED:
                break
        assert answer is not None
        if answer.verdict is Verdict.ACCEPTED:
            for entry, header in zip(readable, decided, strict=True):
                self._accepted(entry, header)
        elif len(readable) > 1:
            middle = len(readable) // 2
            self._deliver(readable[:middle])
            if not self._is_over():
                self._deliver(readable[middle:])
        else:
            self._bury(readable[0], decided[0], answer)

    def _send_until_judged(self, body: bytes, traces: int) -> Answer | None:
        """The back end's verdict on the data (never WAIT); `None` when the exporter stops before there is one."""
        prepared = self._prepare(body)
        waits = broke = 0
        works_without_it = False
        while True:
            self._stats.requests += 1
            answer = self._post(prepared)
            if answer.verdict is Verdict.ACCEPTED:
                self._stats.last_error = ""
                self._count_rejected(answer.body)
                return answer
            self._stats.last_error = str(answer)
            if answer.verdict is Verdict.REFUSED:
                return answer
            if answer.verdict is Verdict.BROKE:
                broke += 1
                if broke >= self._options.server_errors:
                    # One trace is only to blame if the back end works without it, and then breaks on it once more.
                    if traces > 1 or works_without_it:
                        return answer
                    works_without_it = self._answers_without_data()
                    if works_without_it:
                        continue
            if waits == 0:
                log.warning("exporter %s waits: %s", self.name, answer)
            self._stats.retries += 1
            self._pause(answer.retry_after_s if answer.retry_after_s is not None else self._delay(waits))
            waits += 1
            if self._is_over():
                return None

    def _answers_without_data(self) -> bool:
        """Whether the back end takes an empty request, that is: whether it works at all."""
        return self._post_nothing().verdict in (Verdict.ACCEPTED, Verdict.REFUSED)

    def _count_rejected(self, body: bytes) -> None:
        try:
            partial = ExportTraceServiceResponse.FromString(body).partial_success
        except DecodeError:
            return  # not every back end answers in protobuf; the status is what counts
        if partial.rejected_spans:
            self._stats.rejected_spans += partial.rejected_spans
            log.warning("exporter %s: %d spans rejected: %s", self.name, partial.rejected_spans, partial.error_message)

    def _finished(self, entry: Entry, header: dict[str, Any]) -> None:
        """Count and tell that an item has arrived."""
        decision = header["decision"]
        self._tell(header["trace_id"], "late_spans" if decision is None else "exported", entry.spans, "")
        self._stats.exported_traces += decision is not None
        self._stats.exported_spans += entry.spans

    def _bury(self, entry: Entry, header: dict[str, Any], answer: Answer) -> None:
        log.error("exporter %s: trace %s is refused, %s", self.name, header["trace_id"], answer)
        self._queue.bury(entry, {"at": _now(), "status": answer.status, "response": answer.text})
        self._stats.dead_lettered += 1
        self._tell(header["trace_id"], "dead_letter", entry.spans, str(answer))

    def _tell(self, trace_id: str, outcome: Any, spans: int, detail: str) -> None:
        if self._on_outcome is not None:
            self._on_outcome(ExportOutcome(trace_id, self.name, outcome, spans, _now(), detail))

    # -- time

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _delay(self, failures: int) -> float:
        """Exponential back-off with jitter: between half of the step and the step."""
        step = min(self._options.retry_max_s, self._options.retry_first_s * 2 ** min(failures, 20))
        return step * random.uniform(0.5, 1.0)

    def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the deadline that a `stop` sets meanwhile."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < min(end, self._deadline or end):
            time.sleep(min(0.05, end - now))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
