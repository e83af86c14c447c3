"""A queue on disk: one file per item, whole by rename, so that what was accepted survives `kill -9` and a power cut.

    <folder>/queue/<time>-<spans>-<id>.spans   to be sent
    <folder>/queue/<time>-<spans>-<id>.check   sent; the back end has not shown it yet
    <folder>/queue/<time>-<spans>-<id>.note    sent; its annotation is still to be posted
    <folder>/dead/<time>-<spans>-<id>.dead     refused by the back end, with its answer

A file is one line of JSON (the header) and then the bytes of an `ExportTraceServiceRequest`. Names sort by arrival.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from observer_core.errors import InputError, ObserverError
from observer_core.files import fsync_dir, remove_unfinished, write_whole
from observer_serving.export.item import QueueFull

log = logging.getLogger(__name__)

EXPORT_FOLDER = "export"
"""Under `OBSERVER_HOME/serving`: one folder per exporter, by name."""
SPANS, CHECK, NOTE, DEAD = ".spans", ".check", ".note", ".dead"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the queue; what ordering and batching need is in its name and size."""

    path: Path
    queued_ns: int
    spans: int
    size: int

    @classmethod
    def of(cls, path: Path, size: int) -> "Entry | None":
        """`None` when the name is not one of ours."""
        time_text, _, rest = path.stem.partition("-")
        spans_text, _, _ = rest.partition("-")
        if not (time_text.isdecimal() and spans_text.isdecimal()):
            return None
        return cls(path, int(time_text), int(spans_text), size)

    @property
    def state(self) -> str:
        """What is left to do: `SPANS`, `CHECK` or `NOTE`."""
        return self.path.suffix

    def read(self) -> tuple[dict[str, Any], bytes]:
        """The header and the request's bytes.

        Raises:
            ObserverError: the file is gone, unreadable or damaged.
        """
        try:
            header, separator, body = self.path.read_bytes().partition(b"\n")
            parsed = orjson.loads(header)
        except (OSError, orjson.JSONDecodeError) as error:
            raise ObserverError(f"cannot read {self.path}: {error}; remove the file") from error
        if not separator or not isinstance(parsed, dict):
            raise ObserverError(f"{self.path} is damaged; remove the file")
        return parsed, body


class DiskQueue:
    """The items of one exporter that wait. Any thread may `put`; one worker takes them out."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self.folder = folder
        self._queue = folder / "queue"
        self._dead = folder / "dead"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._bytes = 0
        for sub in (self._queue, self._dead):
            try:
                sub.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"cannot create {sub}: {error.strerror}; set OBSERVER_HOME to a folder you may write"
                ) from error
        self._owner = (folder / "lock").open("w")
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._owner.close()
            raise InputError(
                f"{folder} is in use by another process; stop it or give the exporter another name"
            ) from None
        for sub in (self._queue, self._dead):
            remove_unfinished(sub)
        self.rescan()

    def close(self) -> None:
        """Let another process have the folder."""
        self._owner.close()

    def put(self, header: dict[str, Any], body: bytes, spans: int) -> None:
        """Accept an item; durable when this returns.

        Raises:
            QueueFull: the bound is reached.
            ObserverError: the disk refused it.
        """
        now = time.time_ns()
        path = self._queue / f"{now:020d}-{spans}-{uuid.uuid4().hex[:12]}{SPANS}"
        data = orjson.dumps(header) + b"\n" + body
        if self._bytes + len(data) > self._max_bytes:
            raise QueueFull(
                f"the export queue {self._queue} is full ({self._bytes} bytes); see why its back end does not answer"
            )
        write_whole(path, data)
        with self._lock:
            if path.exists():  # else a scan found the file at once and the worker has delivered it already
                self._add(Entry(path, now, spans, len(data)))

    def oldest(self, *, max_bytes: int, max_spans: int, max_items: int) -> list[Entry]:
        """The oldest items to be sent that fit into one request; at least one when there is any."""
        batch: list[Entry] = []
        size = spans = 0
        for entry in self._snapshot():
            if entry.state != SPANS:
                continue
            size += entry.size
            spans += entry.spans
            if batch and (size > max_bytes or spans > max_spans or len(batch) >= max_items):
                break
            batch.append(entry)
        return batch

    def waiting(self, state: str, limit: int) -> list[Entry]:
        """The oldest items in a state."""
        return [entry for entry in self._snapshot() if entry.state == state][:limit]

    def move(self, entry: Entry, state: str) -> None:
        """Something was done with an item; another thing remains."""
        renamed = entry.path.with_suffix(state)
        try:
            entry.path.rename(renamed)
        except FileNotFoundError:  # erased meanwhile
            self.done(entry)
            return
        with self._lock:
            self._drop(entry)
            self._add(replace(entry, path=renamed))

    def done(self, entry: Entry) -> None:
        """Nothing is left to do."""
        entry.path.unlink(missing_ok=True)
        with self._lock:
            self._drop(entry)

    def bury(self, entry: Entry, error: dict[str, Any]) -> None:
        """Move an item to the dead letters together with what the back end said."""
        header, body = entry.read()
        letter = (self._dead / entry.path.name).with_suffix(DEAD)
        write_whole(letter, orjson.dumps(header | {"error": error}) + b"\n" + body)
        if not entry.path.exists():  # erased meanwhile
            letter.unlink(missing_ok=True)
        self.done(entry)

    def set_aside(self, entry: Entry) -> None:
        """Take a damaged file out of the queue, as it is; one that is gone is forgotten."""
        with contextlib.suppress(FileNotFoundError):
            entry.path.rename(self._dead / f"{entry.path.name}.damaged")
        with self._lock:
            self._drop(entry)

    def erase(self, trace_id: str) -> int:
        """Remove what waits or was refused of a trace (hex); how many files there were."""
        gone = 0
        for entry in self._snapshot():
            if _is_about(entry.path, trace_id):
                self.done(entry)
                gone += 1
        for path in self._dead.iterdir():
            if _is_about(path, trace_id):
                path.unlink(missing_ok=True)
                gone += 1
        return gone

    def rescan(self) -> None:
        """Take in files that another process put here, such as replayed dead letters; forget those that are gone."""
        found: dict[str, Entry] = {}
        with os.scandir(self._queue) as files:
            for file in files:
                if file.name.endswith((SPANS, CHECK, NOTE)) and not file.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        entry = Entry.of(Path(file.path), file.stat().st_size)
                        if entry is not None:
                            found[file.name] = entry
        with self._lock:
            # A `put` that ended after the scan is known already and must stay known.
            for name in [
                name for name, entry in self._entries.items() if name not in found and not entry.path.exists()
            ]:
                self._drop(self._entries[name])
            for entry in found.values():
                if entry.path.exists():
                    self._add(entry)

    def depth(self) -> tuple[int, int, float]:
        """Items, bytes, and the age of the oldest in seconds."""
        with self._lock:
            oldest = min((entry.queued_ns for entry in self._entries.values()), default=None)
            age = 0.0 if oldest is None else max(0.0, (time.time_ns() - oldest) / 1e9)
            return len(self._entries), self._bytes, age

    def _snapshot(self) -> list[Entry]:
        with self._lock:
            return sorted(self._entries.values(), key=lambda entry: entry.path.name)

    def _add(self, entry: Entry) -> None:
        if entry.path.name not in self._entries:
            self._entries[entry.path.name] = entry
            self._bytes += entry.size

    def _drop(self, entry: Entry) -> None:
        if self._entries.pop(entry.path.name, None) is not None:
            self._bytes -= entry.size


def _is_about(path: Path, trace_id: str) -> bool:
    """Whether a file holds a trace; of a damaged one its bytes are searched."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    try:
        return orjson.loads(data.partition(b"\n")[0])["trace_id"] == trace_id
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return trace_id.encode() in data or bytes.fromhex(trace_id) in data


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A trace that a back end refused."""

    exporter: str
    trace_id: str
    spans: int
    at: str
    status: int | None
    response: str
    entry: Entry


def dead_letters(serving: Path) -> Iterator[DeadLetter]:
    """All dead letters of all exporters under `OBSERVER_HOME/serving`, the oldest first within each; a damaged one is
    named in the log."""
    for path in sorted((serving / EXPORT_FOLDER).glob(f"*/dead/*{DEAD}")):
        entry = Entry.of(path, path.stat().st_size)
        if entry is None:
            continue
        try:
            header, _ = entry.read()
            error = header["error"]
            told = (header["trace_id"], entry.spans, error["at"], error["status"], error["response"])
        except (ObserverError, KeyError, TypeError) as problem:  # it must not hide the others
            log.error("%s is no dead letter that can be read (%r); look at it, or remove it", path, problem)
            continue
        yield DeadLetter(path.parents[1].name, *told, entry)


def replay(letter: DeadLetter) -> None:
    """Put a dead letter back into its exporter's queue; a running service finds it there within seconds."""
    header, body = letter.entry.read()
    header.pop("error")
    path = letter.entry.path
    target = path.parents[1] / "queue" / f"{time.time_ns():020d}-{letter.spans}-{uuid.uuid4().hex[:12]}{SPANS}"
    write_whole(target, orjson.dumps(header) + b"\n" + body)
    path.unlink()
    fsync_dir(path.parent)
