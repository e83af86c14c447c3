"""What one replica knows of the record's log, in SQLite: its messages applied in their order."""

import base64
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from observer_core.decisions import Decision
from observer_serving.buffer.nats.events import ROW_BITS
from observer_serving.buffer.nats.link import MESSAGE_ID
from observer_serving.buffer.record import DecisionRecord

log = logging.getLogger(__name__)

_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS applied (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
INSERT OR IGNORE INTO applied VALUES (1, 0);
CREATE TABLE IF NOT EXISTS applied_id (one INTEGER PRIMARY KEY CHECK (one = 1), message_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS settled_parts (part INTEGER PRIMARY KEY, id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS erasing (trace_id BLOB PRIMARY KEY, id INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS more_ids (trace_id TEXT, number INTEGER, span_ids BLOB, PRIMARY KEY (trace_id, number));
"""


class View(DecisionRecord):
    """The record in `file` as the log has it up to message `_applied`."""

    def __init__(self, file: Path) -> None:
        # What a power cut takes from the view is read from the log again.
        super().__init__(file, synchronous="NORMAL")
        self._db.executescript(_SCHEMA)
        (self._applied,) = self._db.execute("SELECT number FROM applied").fetchone()
        self._settled_parts: dict[int, int] = dict(self._db.execute("SELECT part, id FROM settled_parts"))
        (self._count,) = self._db.execute("SELECT count(*) FROM decisions").fetchone()
        self._erasing: set[bytes] = set()  # traces this process is erasing right now
        self._writing = threading.Lock()  # the view has two writers: the follower, and what removes old rows
        self._progress = threading.Condition()

    def _start_over(self) -> None:
        with self._writing:
            with self._transaction():
                self._remove(self._db.execute("SELECT id, trace_id, p_wrong FROM decisions").fetchall())
                for table in ("settled_parts", "more_ids", "applied_id"):
                    self._db.execute(f"DELETE FROM {table}")
                self._db.execute("UPDATE applied SET number = 0")
            self._count = self._applied = 0
            self._settled_parts.clear()

    def _apply(self, messages: Sequence[Any]) -> None:
        """Bring the view up to these messages, all or nothing."""
        settled: dict[int, int] = {}
        erased: list[bytes] = []
        added = 0
        with self._writing:
            with self._transaction():
                for message in messages:
                    number = message.metadata.sequence.stream
                    try:
                        added += self._apply_one(number, orjson.loads(message.data), settled, erased)
                    except _UNREADABLE as error:
                        log.error("message %d of the record's log is none of ours: %r", number, error)
                self._db.execute("UPDATE applied SET number = ?", (number,))
                message_id = (messages[-1].headers or {}).get(MESSAGE_ID, "")
                self._db.execute("INSERT OR REPLACE INTO applied_id VALUES (1, ?)", (message_id,))
            self._count += added
            self._settled_parts.update(settled)
            with self._progress:
                self._applied = number
                self._progress.notify_all()
        for trace_id in erased:
            if self.on_erased is not None and trace_id not in self._erasing:
                self.on_erased(trace_id)

    def _apply_one(self, number: int, event: dict[str, Any], settled: dict[int, int], erased: list[bytes]) -> int:
        """Apply one message; returns by how many decisions there are more."""
        self._db.executemany(
            "INSERT OR REPLACE INTO more_ids VALUES (?, ?, ?)",
            [(trace_id, place, base64.b64decode(ids)) for trace_id, place, ids in event.get("ids", ())],
        )
        rows = [(number << ROW_BITS | index, *one) for index, one in enumerate(event.get("decided", ()))]
        added = self._add_rows(rows, again=False) + self._add_rows(event.get("again", ()), again=True)
        for trace_id in map(bytes.fromhex, event.get("erased", ())):
            row = self._index.find_now([trace_id]).get(trace_id)
            self._db.execute("INSERT OR IGNORE INTO erasing VALUES (?, ?)", (trace_id, row))
            added -= self._forget(trace_id)
            self._erased.add(trace_id)
            erased.append(trace_id)
        self._update_late([(trace_id, base64.b64decode(ids)) for trace_id, ids in event.get("late", ())])
        for part, row in event.get("settled", ()):
            self._db.execute("INSERT OR REPLACE INTO settled_parts VALUES (?, ?)", (part, row))
            settled[part] = row
        self._update_exported(event.get("exported", ()))
        self._update_shadows(event.get("shadows", ()))
        return added

    def _add_rows(self, rows: Sequence[Sequence[Any]], *, again: bool) -> int:
        """Add rows (each with fields and span ids) of traces that have none; returns how many."""
        added = 0
        known = set(self._rows(fields["trace_id"] for _, fields, *_ in rows))
        for row, fields, span_ids, *more in rows:
            decision = Decision.from_json(fields)
            if bytes.fromhex(decision.trace_id) in self._erased:
                continue
            if decision.trace_id not in known:
                ids = base64.b64decode(span_ids) + (self._more_ids(decision.trace_id, more[0]) if more else b"")
                self._insert(row, decision, ids)
                known.add(decision.trace_id)
                added += 1
            elif not again:
                log.error("the log decides trace %s twice; the first decision stands", decision.trace_id)
        return added

    def _more_ids(self, trace_id: str, count: int) -> bytes:
        """The ids that came before a decision; none is left of them."""
        query = "SELECT span_ids FROM more_ids WHERE trace_id = ? AND number < ? ORDER BY number"
        found = self._db.execute(query, (trace_id, count)).fetchall()
        self._db.execute("DELETE FROM more_ids WHERE trace_id = ?", (trace_id,))
        return b"".join(ids for (ids,) in found)
