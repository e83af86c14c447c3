"""The write-ahead log: what is acknowledged is on disk first.

Append-only segments of checksummed entries. One thread writes: it takes everything that waits, writes it, syncs once
and only then acknowledges (group commit). Every item of an entry holds its segment until it is released; a segment
nobody holds is deleted, the one written to as well, and none is written to for longer than `max_age`: what has been
dealt with does not stay on the disk. A damaged tail (power cut in mid-write) was never acknowledged; it is reported
and skipped.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from observer_core.files import fsync_dir, write_whole
from observer_serving.buffer.protocol import BufferUnavailableError, Damage, Logged
from observer_serving.buffer.received import Received, without_trace
from observer_serving.buffer.segment_file import SegmentFile, write_buffer
from observer_serving.buffer.segments import SUFFIX, found, leave_room, new_name, read_name, stretches, takes_data

log = logging.getLogger(__name__)

_REWRITTEN = ".rewritten"
_MAX_COMMIT_BYTES = 32 << 20

_PROBE_SECONDS = 1.0
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


@dataclass(slots=True)
class _Waiting:
    received: Received
    size: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


@dataclass(slots=True)
class _Segment:
    path: Path
    size: int = 0
    held: int = 0


@dataclass(slots=True)
class _Writer:
    number: int
    file: SegmentFile
    segment: _Segment
    opened_at: float


class WriteAheadLog:
    """The log in `folder`. Call `replay` once, then `start`; `append` from the event loop, `release` from any thread.

    Args:
        folder: where the segments lie.
        on_commit: called on the writer's thread, in log order, with entries that are on disk, before they are
            acknowledged.
        sync: whether an entry is synced to the disk before it is acknowledged; without it `kill -9` loses nothing but
            a power cut may.
        segment_bytes: a segment above this size is followed by a new one.
        max_bytes: all segments together; above it `append` refuses.
        max_waiting_bytes: entries waiting for the writer; above it `append` refuses.
        max_age: seconds after which a segment is followed by a new one, however small it is.
    """

    shared = False

    def __init__(
        self,
        folder: Path,
        on_commit: Callable[[list[Logged]], None],
        *,
        sync: bool = True,
        segment_bytes: int = 64 << 20,
        max_bytes: int = 8 << 30,
        max_waiting_bytes: int = 256 << 20,
        max_age: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._on_commit = on_commit
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._max_age = max_age
        self._monotonic = monotonic
        self._segments: dict[int, _Segment] = {}
        self._size = 0  # of all of them; changed under the lock
        self._lock = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._writer: _Writer | None = None
        self._buffer = write_buffer()
        self._stopping = False
        self._rolling = False
        self._thread = threading.Thread(target=self._run, name="observer-wal", daemon=True)
        self._next = 1
        self.damage: list[Damage] = []
        self.failure: str | None = None
        """Why the last write failed; `None` once one has succeeded again."""

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._size

    @property
    def segments(self) -> int:
        return len(self._segments)

    @property
    def left(self) -> int:
        """Bytes that `replay` will read."""
        return sum(path.stat().st_size for path in self._folder.glob(f"*{SUFFIX}"))

    def replay(self) -> Iterator[Logged]:
        """Every readable entry of the segments found, oldest first; each item holds its segment again. Raises as
        `found`."""
        for left in self._folder.glob(f"*{_REWRITTEN}"):  # by a crash while a trace was erased
            left.unlink()
        for number, seed, path in found(self._folder):
            self._next = max(self._next, number + 1)
            # Held once by the reader itself: what is read first may be released before the rest is read.
            segment = self._segments[number] = _Segment(path, size=path.stat().st_size, held=1)
            self._size += segment.size
            for received in self._entries(number, segment, seed):
                segment.held += len(received.items)
                yield Logged(number, received)
            self.release(number)

    def _entries(self, number: int, segment: _Segment, seed: int) -> Iterator[Received]:
        data = segment.path.read_bytes()
        for start, stop, payload in stretches(data, seed):
            what = "an unfinished write, never acknowledged" if stop == len(data) else "later entries are intact"
            if payload is not None:
                try:
                    yield Received.decode(payload)
                    continue
                except ValueError as error:
                    what = f"not an entry of this version: {error}; the file stays"
                    segment.held += 1
            self.damage.append(Damage(segment.path, start, stop - start))
            log.warning("log segment %d: %d bytes at offset %d skipped (%s)", number, stop - start, start, what)

    def start(self) -> None:
        self._thread.start()

    def refuses(self) -> str | None:
        """Why an entry would be refused now, or `None`."""
        if self._waiting_bytes > self._max_waiting_bytes:
            return "too much is waiting for the disk"
        if self.size > self._max_bytes:
            return "the write-ahead log has reached its limit (buffer.max_bytes)"
        return None

    def append(self, received: Received) -> asyncio.Future[None]:
        """Take an entry, on the event loop; the future is done when it is on disk.

        Raises:
            BufferUnavailableError: it is not (disk full, over a limit, shutting down), at once or by the future;
                nothing of it will be decided.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = _Waiting(received, received.size, loop, future)
        with self._lock:
            why = "the service is shutting down" if self._stopping else self.refuses()
            if why is not None:
                raise BufferUnavailableError(why)
            self._waiting.append(waiting)
            self._waiting_bytes += waiting.size
            if len(self._waiting) == 1:  # else the writer knows
                self._lock.notify()
        return future

    def release(self, segment: int, items: int = 1) -> None:
        """Say that `items` items of a segment are no longer needed."""
        with self._lock:
            self._segments[segment].held -= items
        self._reclaim()

    def flush(self) -> None:
        """Refuse new entries and wait until those that wait are on disk."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """`flush`, then delete the segments nobody holds."""
        self.flush()
        if self._writer is not None:
            self._writer.file.close()
            self._writer = None
        self._reclaim()

    def erase(self, trace_id: bytes) -> int:
        """Rewrite the segments without a trace's items (their holds must be released); how many items there were.

        Raises:
            OSError: the disk refused; what was not rewritten is as it was, call again.
        """
        self._roll_over()
        erased = 0
        with self._lock:
            segments = sorted(self._segments.items())
        for number, segment in segments:
            writer = self._writer
            if writer is not None and writer.number == number:
                continue  # begun after the roll
            with contextlib.suppress(FileNotFoundError):  # nobody held it any more
                data = segment.path.read_bytes()
                if trace_id in data:
                    erased += self._rewrite(number, segment, data, trace_id)
        return erased

    def _roll_over(self) -> None:
        """Let the writer begin a new segment, so that nothing is appended to those that are there."""
        with self._lock:
            self._rolling = True
            self._lock.notify_all()
            if self._thread.is_alive():
                self._lock.wait_for(lambda: not self._rolling)
            else:
                self._close_segment()
        self._reclaim()

    def _close_segment(self) -> None:
        if self._writer is not None:
            self._writer.file.close()
            self._writer = None
        self._rolling = False
        self._lock.notify_all()

    def _rewrite(self, number: int, segment: _Segment, data: bytes, trace_id: bytes) -> int:
        rest, erased = without_trace(data, read_name(segment.path)[1], trace_id)
        new = segment.path.with_suffix(_REWRITTEN)
        write_whole(new, rest)
        with self._lock:
            if number in self._segments:
                new.replace(segment.path)
                self._size += len(rest) - segment.size
                segment.size = len(rest)
            else:
                new.unlink()
        return erased

    def _reclaim(self) -> None:
        with self._lock:
            active = self._writer.number if self._writer else None
            free = [n for n, segment in self._segments.items() if segment.held <= 0 and n != active]
            gone = [self._segments.pop(number) for number in free]
            self._size -= sum(segment.size for segment in gone)
            if self._nobody_holds_active():
                self._lock.notify()  # only the writer may close it
        for segment in gone:
            segment.path.unlink(missing_ok=True)

    def _nobody_holds_active(self) -> bool:
        segment = self._writer.segment if self._writer else None
        return segment is not None and segment.size > 0 and segment.held <= 0

    def _retire(self) -> None:
        """Close the active segment and delete it."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.file.close()
        self._reclaim()

    def _run(self) -> None:
        while True:
            with self._lock:
                woken = True
                while woken and not (self._waiting or self._stopping or self._rolling or self._nobody_holds_active()):
                    woken = self._lock.wait(_PROBE_SECONDS if self.failure else None)
                if self._rolling:
                    self._close_segment()
                    continue
                if not self._waiting and self._stopping:
                    return
            if not woken:
                self._probe()
                continue
            if not self._waiting:
                self._retire()
                continue
            with self._lock:
                batch: list[_Waiting] = []
                size = 0
                while self._waiting and size < _MAX_COMMIT_BYTES:
                    batch.append(self._waiting.popleft())
                    size += batch[-1].size
                self._waiting_bytes -= size
            self._commit(batch)

    def _probe(self) -> None:
        """Look whether the disk takes data again: no balancer sends any only to be refused."""
        if takes_data(self._folder):
            self.failure = None
            log.info("the log in %s can be written again", self._folder)

    def _commit(self, batch: list[_Waiting]) -> None:
        try:
            leave_room(self._folder, sum(waiting.size for waiting in batch))
            number = self._write([waiting.received.encode() for waiting in batch])
        except OSError as error:
            self.failure = f"cannot write the log in {self._folder}: {error.strerror or error}"
            log.error("%s; free space, clients are told to come back", self.failure)
            _answer(batch, BufferUnavailableError(self.failure))
            return
        self.failure = None
        with self._lock:
            self._segments[number].held += sum(len(waiting.received.items) for waiting in batch)
        self._on_commit([Logged(number, waiting.received) for waiting in batch])
        _answer(batch, None)

    def _write(self, payloads: list[list[bytes]]) -> int:
        """Append to the active segment and sync; on failure the segment is as it was (or is given up)."""
        writer = self._writer
        now = self._monotonic()
        if (
            writer is None
            or writer.segment.size >= self._segment_bytes
            or (writer.segment.size > 0 and now - writer.opened_at >= self._max_age)
        ):
            writer = self._open_segment(now)
        try:
            written = writer.file.append(payloads)
            if self._sync:
                _sync(writer.file.descriptor)
        except OSError:
            self._give_up(writer)
            raise
        with self._lock:
            writer.segment.size += written
            self._size += written
        return writer.number

    def _give_up(self, writer: _Writer) -> None:
        """Cut a half-written tail off; after a failed sync nothing more is appended to this segment."""
        try:
            writer.file.truncate(writer.segment.size)
        except OSError as error:
            log.warning("cannot cut the unfinished tail of %s: %s", writer.segment.path.name, error.strerror)
        writer.file.close()
        self._writer = None

    def _open_segment(self, now: float) -> _Writer:
        number = self._next
        self._next += 1
        path = self._folder / new_name(number)
        file = SegmentFile(path, self._buffer, direct=self._sync)
        try:
            fsync_dir(self._folder)
        except OSError:
            file.close()
            raise
        segment = _Segment(path)
        previous = self._writer
        with self._lock:
            self._segments[number] = segment
            self._writer = _Writer(number, file, segment, now)
        if previous is not None:
            previous.file.close()
            self._reclaim()
        return self._writer


def _answer(batch: list[_Waiting], refusal: BufferUnavailableError | None) -> None:
    """Tell those who wait what became of their entries, each event loop once."""
    futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiting in batch:
        futures.setdefault(waiting.loop, []).append(waiting.future)
    for loop, theirs in futures.items():
        loop.call_soon_threadsafe(_settle, theirs, refusal)


def _settle(futures: list[asyncio.Future[None]], refusal: BufferUnavailableError | None) -> None:
    for future in futures:
        if future.cancelled():
            continue
        if refusal is None:
            future.set_result(None)
        else:
            future.set_exception(refusal)
