"""The decision record: one row per decided trace, on disk before anything follows from the decision.

SQLite in write-ahead mode under `serving/`. The unique index on the trace id is what makes a second decision
impossible; the span ids in the row tell a late span from one that was decided or is sent again. Rows are settled in
order: all rows up to the settled one have been handed to every exporter and sealed in the spool.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import orjson

from observer_core.decisions import OBJECTS, Decision, decision_row
from observer_core.errors import ObserverError
from observer_serving.receive.wire import SPAN_ID_BYTES

_FIELDS = tuple(f.name for f in fields(Decision))
_COLUMNS = ", ".join(_FIELDS)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS decisions (
  id INTEGER PRIMARY KEY, {", ".join(f"{n} BLOB NOT NULL" if n == "trace_id" else n for n in _FIELDS)}, span_ids BLOB
);
CREATE UNIQUE INDEX IF NOT EXISTS decisions_trace_id ON decisions (trace_id);
CREATE TABLE IF NOT EXISTS settled (one INTEGER PRIMARY KEY CHECK (one = 1), id INTEGER NOT NULL);
INSERT OR IGNORE INTO settled VALUES (1, 0);
"""
_BOOLS = ("state_truncated", "exported")
_MAX_VARIABLES = 500

EQUALS = ("decision", "reason", "severity", "project", "model", "model_version", "policy_version", "complete_reason")
"""Fields `find` filters by equality; the others it knows are `min_p_wrong`, `max_p_wrong`, `since`, `until`."""
_BOUNDS = {
    "min_p_wrong": "p_wrong >= ?",
    "max_p_wrong": "p_wrong <= ?",
    "since": "decided_at >= ?",
    "until": "decided_at < ?",
}


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
            ObserverError: the file cannot be opened or is not a decision record.
        """
        self._file = file
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        try:
            self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(f"PRAGMA synchronous = {synchronous}")
            self._db.execute("PRAGMA cache_size = -65536")  # KiB: the trace id index of a million decisions
            self._db.executescript(_SCHEMA)
            (self._settled,) = self._db.execute("SELECT id FROM settled").fetchone()
        except sqlite3.Error as error:
            raise ObserverError(
                f"cannot use the decision record {file}: {error}; move it away to start anew"
            ) from error

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
        with self._transaction():
            return [self._insert("", None, decision, span_ids).lastrowid for decision, span_ids in decided]

    def decided(self, trace_ids: Sequence[bytes]) -> set[bytes]:
        """Which of these traces are decided, for the engine's thread."""
        found: set[bytes] = set()
        for first in range(0, len(trace_ids), _MAX_VARIABLES):
            some = trace_ids[first : first + _MAX_VARIABLES]
            marks = ", ".join("?" * len(some))
            rows = self._reading().execute(f"SELECT trace_id FROM decisions WHERE trace_id IN ({marks})", some)
            found.update(trace_id for (trace_id,) in rows)
        return found

    def lookup(self, trace_id: bytes) -> Recorded | None:
        """The decision about a trace, for the engine's thread."""
        return _recorded(self._reading().execute(f"{_SELECT}, span_ids FROM decisions WHERE trace_id = ?", (trace_id,)))

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
        cursor = self._reader().execute(
            f"{_SELECT}, span_ids FROM decisions WHERE trace_id = ?", (bytes.fromhex(trace_id),)
        )
        recorded = _recorded(cursor)
        return recorded.decision if recorded else None

    def find(
        self, filters: dict[str, Any], *, limit: int, before: int | None = None
    ) -> tuple[list[Decision], int | None]:
        """Decisions, newest first, and the row to pass as `before` for the next page (`None` on the last).

        Args:
            filters: names of `EQUALS`, or `min_p_wrong`, `max_p_wrong`, `since`, `until` (RFC 3339 UTC) with values.
        """
        conditions, values = ["1"], []
        for name, value in filters.items():
            conditions.append(f"{name} = ?" if name in EQUALS else _BOUNDS[name])
            values.append(value)
        if before is not None:
            conditions.append("id < ?")
            values.append(before)
        cursor = self._reader().execute(
            f"{_SELECT} FROM decisions WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?", [*values, limit + 1]
        )
        rows = cursor.fetchall()
        page = rows[:limit]
        return [_decision(row) for row in page], (page[-1][0] if len(rows) > limit else None)

    def count(self) -> int:
        """How many decisions there are (rows are never deleted in the middle, so the last id is the count)."""
        (last,) = self._reader().execute("SELECT coalesce(max(id), 0) FROM decisions").fetchone()
        return last

    def close(self) -> None:
        """Close all connections; the file is left checkpointed."""
        for reader in self._readers:
            reader.close()
        self._db.close()

    # -- inside a transaction

    def _insert(self, on_conflict: str, row: int | None, decision: Decision, span_ids: bytes) -> sqlite3.Cursor:
        """Add a decision, at `row` or at the next one; `on_conflict` is SQL such as `OR IGNORE`."""
        values = decision_row(decision) | {"trace_id": bytes.fromhex(decision.trace_id)}
        marks = ", ".join("?" * (len(_FIELDS) + 2))
        return self._db.execute(
            f"INSERT {on_conflict} INTO decisions (id, {_COLUMNS}, span_ids) VALUES ({marks})",
            [row, *(values[name] for name in _FIELDS), span_ids],
        )

    def _update_late(self, late: Sequence[tuple[str, bytes]]) -> None:
        self._db.executemany(
            "UPDATE decisions SET late_spans = late_spans + ?, span_ids = CAST(span_ids || ? AS BLOB) "
            "WHERE trace_id = ?",
            [(len(span_ids) // SPAN_ID_BYTES, span_ids, bytes.fromhex(trace_id)) for trace_id, span_ids in late],
        )

    def _update_exported(self, trace_ids: Sequence[str]) -> None:
        self._db.executemany(
            "UPDATE decisions SET exported = 1 WHERE trace_id = ?", [(bytes.fromhex(i),) for i in trace_ids]
        )

    def _update_shadows(self, scores: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        self._db.executemany(
            "UPDATE decisions SET shadow = json_patch(shadow, ?) WHERE trace_id = ?",
            [(orjson.dumps({name: score}).decode(), bytes.fromhex(trace_id)) for trace_id, name, score in scores],
        )

    def _reading(self) -> sqlite3.Connection:
        """The connection the engine's thread reads by."""
        return self._db

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _reader(self) -> sqlite3.Connection:
        """A read connection of the calling thread's own: readers never wait for the writer."""
        reader = getattr(self._local, "reader", None)
        if reader is None:
            reader = sqlite3.connect(self._file, check_same_thread=False)
            reader.execute("PRAGMA query_only = ON")
            self._local.reader = reader
            self._readers.append(reader)
        return reader


_SELECT = f"SELECT id, {_COLUMNS}"


def _decision(row: tuple) -> Decision:
    values = dict(zip(_FIELDS, row[1:], strict=False))
    values["trace_id"] = values["trace_id"].hex()
    for name in OBJECTS:
        values[name] = orjson.loads(values[name])
    for name in _BOOLS:
        values[name] = bool(values[name])
    return Decision(**values)


def _recorded(cursor: sqlite3.Cursor) -> Recorded | None:
    row = cursor.fetchone()
    return None if row is None else Recorded(row[0], _decision(row), row[-1])
