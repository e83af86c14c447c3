"""The decision record: one row per decided trace, on disk before anything follows from the decision.

SQLite in write-ahead mode under `serving/`. The index of trace ids is what makes a second decision impossible, one
process per file given; the span ids in the row tell a late span from one that was decided or is sent again. Rows are
settled in order: all rows up to the settled one have been handed to every exporter and sealed in the spool. Every
filter has an index: of a few values an ordinary one (SQLite appends the row's id to each, so a filter's rows come
newest first, and new rows only touch the end of each value's), of scores that of `TraceIndex`, of time that of
`TimeIndex` (by an ordinary one retention finds the oldest). Of an erased trace the id stays, so that spans that come
later do not make it anew.
"""

import contextlib
import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import orjson

from observer_core.decisions import OBJECTS, Decision, decision_row
from observer_core.errors import ObserverError
from observer_serving.buffer.time_index import SINCE, UNTIL, TimeIndex
from observer_serving.buffer.trace_index import OldRow, TraceIndex
from observer_serving.receive.wire import SPAN_ID_BYTES

_FIELDS = tuple(f.name for f in fields(Decision))
_COLUMNS = ", ".join(_FIELDS)
EQUALS = ("decision", "reason", "severity", "project", "model", "model_version", "policy_version", "complete_reason")
"""Fields `find` filters by equality; the others it knows are `min_p_wrong`, `max_p_wrong`, `since`, `until`."""
_BOUNDS = {"min_p_wrong": "p_wrong >= ?", "max_p_wrong": "p_wrong <= ?"}
_TIMES = {"since": SINCE, "until": UNTIL}
_INDEXES = "".join(
    f"CREATE INDEX IF NOT EXISTS decisions_{name} ON decisions ({name});\n" for name in (*EQUALS, "decided_at")
)

_SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS decisions (
  id INTEGER PRIMARY KEY, {", ".join(f"{n} BLOB NOT NULL" if n == "trace_id" else n for n in _FIELDS)}, span_ids BLOB
);
{_INDEXES}
CREATE TABLE IF NOT EXISTS settled (one INTEGER PRIMARY KEY CHECK (one = 1), id INTEGER NOT NULL);
INSERT OR IGNORE INTO settled VALUES (1, 0);
CREATE TABLE IF NOT EXISTS removed (one INTEGER PRIMARY KEY CHECK (one = 1), rows INTEGER NOT NULL);
INSERT OR IGNORE INTO removed VALUES (1, 0);
CREATE TABLE IF NOT EXISTS erased (trace_id BLOB PRIMARY KEY) WITHOUT ROWID;
COMMIT;
"""
_BOOLS = ("state_truncated", "exported")
_OF_THE_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""Errors that say nothing against the file."""
_NO_ROW = (1 << 63) - 1
_CHECKPOINTS, _CHECKPOINT_WAIT_S = 40, 0.05


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the engine must know of a decided trace: its row, the decision, the ids of all its spans so far."""

    row: int
    decision: Decision
    span_ids: bytes


class DecisionRecord:
    """The record in `file`. Writes come from one thread; `find` and `get` may be called from any."""

    def __init__(self, file: Path, *, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> None:
        """
        Args:
            synchronous: SQLite's; under `NORMAL` a power cut may take the last transactions.

        Raises:
            ObserverError: the file cannot be opened, the disk refuses, or it is not a decision record.
        """
        self._file = file
        self._local = threading.local()
        self.on_erased: Callable[[bytes], None] | None = None
        """Told, from any thread, of a trace that another process erased; see `erasing`."""
        self._readers: list[sqlite3.Connection] = []
        try:
            self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(f"PRAGMA synchronous = {synchronous}")
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.execute("PRAGMA cache_size = -16384")  # KiB: the ends of the table and of its indexes
            self._db.executescript(_SCHEMA)
            self._index = TraceIndex(self._db)
            self._times = TimeIndex(self._db)
            (self._settled,) = self._db.execute("SELECT id FROM settled").fetchone()
            (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM decisions").fetchone()
            self._last = max(last, self._settled)  # a row that was removed leaves its number behind
            (self._removed,) = self._db.execute("SELECT rows FROM removed").fetchone()
            self._erased = {trace_id for (trace_id,) in self._db.execute("SELECT trace_id FROM erased")}
        except sqlite3.Error as error:
            of_the_disk = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _OF_THE_DISK
            mend = "free space, and see that it can be written" if of_the_disk else "move it away to start anew"
            raise ObserverError(f"cannot use the decision record {file}: {error}; {mend}") from error

    @property
    def settled(self) -> int:
        """The last settled row."""
        return self._settled

    def is_settled(self, recorded: Recorded) -> bool:
        """Whether a decision has been handed to every exporter and sealed in the spool."""
        return recorded.row <= self._settled

    def add(self, decided: Sequence[tuple[Decision, bytes]]) -> Sequence[int | None]:
        """Write decisions with their span ids in one transaction; on return they are on disk.

        Returns their rows; `None` for a trace that became another worker's, of which nothing was written.

        Raises:
            sqlite3.Error: they are not (disk full); none of them is.
        """
        rows = list(range(self._last + 1, self._last + 1 + len(decided)))
        trace_ids = [bytes.fromhex(decision.trace_id) for decision, _ in decided]
        if len(set(trace_ids) - self.decided(trace_ids)) < len(decided):
            raise sqlite3.IntegrityError("a trace is to be decided twice")
        with self._transaction():
            for row, (decision, span_ids) in zip(rows, decided, strict=True):
                self._insert(row, decision, span_ids)
        self._last += len(decided)
        return rows

    def decided(self, trace_ids: Sequence[bytes]) -> set[bytes]:
        """Which of these traces are decided, for the engine's thread."""
        return set(self._index.find(self._reading(), trace_ids))

    def lookup(self, trace_id: bytes) -> Recorded | None:
        """The decision about a trace, for the engine's thread."""
        return self._lookup(self._reading(), trace_id)

    def add_late(self, late: Sequence[tuple[Recorded, bytes]]) -> None:
        """Count late spans of decided traces and remember their ids."""
        with self._transaction():
            self._update_late([(recorded.decision.trace_id, span_ids) for recorded, span_ids in late])

    def set_exported(self, trace_ids: Sequence[str]) -> None:
        """Mark traces as exported."""
        with self._transaction():
            self._update_exported(trace_ids)

    def add_shadows(self, scores: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        """Complete decisions (trace ids in hex) by what a shadow scorer of that name says."""
        with self._transaction():
            self._update_shadows(scores)

    def settle(self, delivered: Sequence[tuple[int, str]]) -> None:
        """Say which rows, and so all before them, the exporters' own queues have and the spool has sealed."""
        row = max(row for row, _ in delivered)
        with self._transaction():
            self._db.execute("UPDATE settled SET id = ?", (row,))
        self._settled = row

    def get(self, trace_id: str) -> Decision | None:
        """The decision about a trace (hex)."""
        recorded = self._lookup(self._reader(), bytes.fromhex(trace_id))
        return recorded.decision if recorded else None

    def _lookup(self, db: sqlite3.Connection, trace_id: bytes) -> Recorded | None:
        for row in self._index.find(db, [trace_id]).values():
            found = db.execute(f"{SELECT}, span_ids FROM decisions WHERE id = ?", (row,)).fetchone()
            if found is not None:  # else removed a moment ago
                return Recorded(row, read_decision(found), found[-1])
        return None

    def find(
        self, filters: dict[str, Any], *, limit: int, before: int | None = None
    ) -> tuple[list[Decision], int | None]:
        """Decisions, newest first, and the row to pass as `before` for the next page (`None` on the last).

        Args:
            filters: names of `EQUALS`, or `min_p_wrong`, `max_p_wrong`, `since`, `until` (RFC 3339 UTC) with values.
        """
        before = _NO_ROW if before is None else before
        if filters and filters.keys() <= _BOUNDS.keys():
            rows = self._find_scored(filters, limit + 1, before)
        else:
            conditions = {name: _BOUNDS.get(name) or _TIMES.get(name) or f"{name} = ?" for name in filters}
            values = [value for name, value in filters.items() for _ in range(conditions[name].count("?"))]
            rows = self._select(" AND ".join(conditions.values()) or "1", values, limit + 1, before)
        page = rows[:limit]
        return [read_decision(row) for row in page], (page[-1][0] if len(rows) > limit else None)

    def _find_scored(self, bounds: dict[str, float], limit: int, before: int) -> list[tuple]:
        """Rows by their score alone: of those that are in no chunk yet, then chunk by chunk."""
        condition, values = " AND ".join(_BOUNDS[name] for name in bounds), list(bounds.values())
        sealed = self._index.last_sealed
        rows = self._select(f"{condition} AND id > ?", [*values, sealed], limit, before)
        older = self._index.scored(self._reader(), condition, values, min(before, sealed + 1))
        ids = list(itertools.islice(older, limit - len(rows)))
        if not ids:
            return rows
        return rows + self._select(f"id IN ({', '.join('?' * len(ids))})", ids, len(ids), before)

    def _select(self, condition: str, values: Sequence[Any], limit: int, before: int) -> list[tuple]:
        cursor = self._reader().execute(
            f"{SELECT} FROM decisions WHERE {condition} AND id < ? ORDER BY id DESC LIMIT ?", [*values, before, limit]
        )
        return cursor.fetchall()

    def erased(self, trace_id: bytes) -> bool:
        """Whether the trace was erased: what comes of it is dropped."""
        return trace_id in self._erased

    def erase(self, trace_id: bytes) -> bool:
        """Forget a trace but for its id; its bytes are gone from the file on return. Whether there was a decision."""
        with self._transaction():
            gone = self._forget(trace_id)
            self._db.execute("UPDATE removed SET rows = rows + ?", (gone,))
        self._erased.add(trace_id)
        self._removed += gone
        self._scrub()
        return gone > 0

    def erasing(self) -> list[bytes]:
        """Traces that were erased elsewhere and may still be in this process's own files."""
        return []

    def finish_erasing(self, trace_id: bytes) -> None:
        """A trace is in none of this process's own files any more."""

    def _scrub(self) -> None:
        """Take the bytes of what was deleted out of SQLite's own log."""
        for _ in range(_CHECKPOINTS):
            busy, *_ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return
            time.sleep(_CHECKPOINT_WAIT_S)
        raise ObserverError(f"{self._file} is being read all the time and still holds the trace; erase it again")

    def remove_before(self, moment: str, *, limit: int) -> int:
        """Remove settled decisions older than `moment` (RFC 3339 UTC), at most `limit`; how many were removed."""
        with self._transaction():
            old = self._old(moment, limit, "id <= ?", self._settled)
            self._remove(old)
            self._db.execute("UPDATE removed SET rows = rows + ?", (len(old),))
        self._removed += len(old)
        return len(old)

    def count(self) -> int:
        """How many decisions there are: the last row's number less the rows removed."""
        return self._last - self._removed

    def close(self) -> None:
        """Close all connections; the file is left checkpointed."""
        for reader in self._readers:
            reader.close()
        self._db.close()

    # -- inside a transaction

    def _insert(self, row: int, decision: Decision, span_ids: bytes) -> None:
        """Add a decision at `row`."""
        trace_id = bytes.fromhex(decision.trace_id)
        values = decision_row(decision) | {"trace_id": trace_id}
        marks = ", ".join("?" * (len(_FIELDS) + 2))
        self._db.execute(
            f"INSERT INTO decisions (id, {_COLUMNS}, span_ids) VALUES ({marks})",
            [row, *(values[name] for name in _FIELDS), span_ids],
        )
        self._index.add(trace_id, row, decision.p_wrong)
        self._times.add(row, decision.decided_at)

    def _rows(self, trace_ids: Iterable[str]) -> dict[str, int]:
        """The rows of those of these traces (hex) that have one."""
        found = self._index.find_now([bytes.fromhex(trace_id) for trace_id in trace_ids])
        return {trace_id.hex(): row for trace_id, row in found.items()}

    def _old(self, moment: str, limit: int, condition: str = "1", *values: int) -> list[OldRow]:
        """The oldest decisions before a moment."""
        return self._db.execute(
            f"SELECT id, trace_id, p_wrong FROM decisions WHERE decided_at < ? AND {condition} "
            "ORDER BY decided_at LIMIT ?",
            (moment, *values, limit),
        ).fetchall()

    def _remove(self, rows: Sequence[OldRow]) -> None:
        self._db.executemany("DELETE FROM decisions WHERE id = ?", [(row,) for row, _, _ in rows])
        self._index.remove(rows)
        self._times.trim()

    def _forget(self, trace_id: bytes) -> int:
        """Delete a trace's decision and note its id; how many decisions there were."""
        self._db.execute("INSERT OR IGNORE INTO erased VALUES (?)", (trace_id,))
        row = self._index.find_now([trace_id]).get(trace_id)
        rows = self._db.execute("SELECT id, trace_id, p_wrong FROM decisions WHERE id = ?", (row,)).fetchall()
        self._remove(rows)
        return len(rows)

    def _update_late(self, late: Sequence[tuple[str, bytes]]) -> None:
        rows = self._rows(trace_id for trace_id, _ in late)
        self._db.executemany(
            "UPDATE decisions SET late_spans = late_spans + ?, span_ids = CAST(span_ids || ? AS BLOB) WHERE id = ?",
            [(len(span_ids) // SPAN_ID_BYTES, span_ids, rows.get(trace_id)) for trace_id, span_ids in late],
        )

    def _update_exported(self, trace_ids: Sequence[str]) -> None:
        rows = self._rows(trace_ids).values()
        self._db.executemany("UPDATE decisions SET exported = 1 WHERE id = ?", [(row,) for row in rows])

    def _update_shadows(self, scores: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        rows = self._rows(trace_id for trace_id, _, _ in scores)
        self._db.executemany(
            "UPDATE decisions SET shadow = json_patch(shadow, ?) WHERE id = ?",
            [(orjson.dumps({name: score}).decode(), rows.get(trace_id)) for trace_id, name, score in scores],
        )

    def _reading(self) -> sqlite3.Connection:
        """The connection the engine's thread reads by."""
        return self._db

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._index.seal()
            self._times.write()
            self._db.execute("COMMIT")
        except BaseException:
            self._index.rolled_back()
            self._times.rolled_back()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._index.committed()

    def _reader(self) -> sqlite3.Connection:
        """A read connection of the calling thread's own: readers never wait for the writer."""
        reader = getattr(self._local, "reader", None)
        if reader is None:
            reader = sqlite3.connect(self._file, check_same_thread=False)
            reader.execute("PRAGMA query_only = ON")
            self._local.reader = reader
            self._readers.append(reader)
        return reader


def read_decisions(file: Path, *, since: str | None = None) -> Iterator[Decision]:
    """All decisions of a record that is there, oldest first, without writing to it; a service may be using it."""
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as db:
        for row in db.execute(f"{SELECT} FROM decisions WHERE decided_at >= ? ORDER BY id", (since or "",)):
            yield read_decision(row)


SELECT = f"SELECT id, {_COLUMNS}"


def read_decision(row: tuple) -> Decision:
    """The decision in a row that begins with the columns of `SELECT`."""
    values = dict(zip(_FIELDS, row[1:], strict=False))
    values["trace_id"] = values["trace_id"].hex()
    for name in OBJECTS:
        values[name] = orjson.loads(values[name])
    for name in _BOOLS:
        values[name] = bool(values[name])
    return Decision(**values)
