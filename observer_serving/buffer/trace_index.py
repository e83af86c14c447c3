"""Where a trace's row is, and which rows have which score, at a cost that does not grow with the record.

Trace ids and scores come in no order: an index that takes them one by one dirties a page of its own for each, somewhere
in a tree that grows. So the newest rows' ids are kept in memory alone (the table has them; they are read back at
start), and whenever there are enough they become a *chunk*: its ids and its scores go into two indexes in sorted order,
behind all that is there, and its ids' filter tells in memory whether a chunk is worth asking. A chunk is named by its
last row and holds the rows after the chunk before; nothing of it changes but that rows are erased or grow too old.
"""

import itertools
import logging
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from observer_serving.buffer.sieve import Sieve, filter_of

log = logging.getLogger(__name__)

CHUNK_ROWS = 4096
OldRow = tuple[int, bytes, float | None]
"""Row, trace id, `p_wrong`."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS chunks (last INTEGER PRIMARY KEY, filter BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS chunk_ids (
  chunk INTEGER, trace_id BLOB, id INTEGER NOT NULL, PRIMARY KEY (chunk, trace_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunk_scores (
  chunk INTEGER, p_wrong REAL, id INTEGER, PRIMARY KEY (chunk, p_wrong, id)
) WITHOUT ROWID;
"""
# Of a record that was made before there were chunks.
_FORMER = "DROP INDEX IF EXISTS decisions_trace_id; DROP INDEX IF EXISTS decisions_p_wrong;"
_FIND = "SELECT id FROM chunk_ids JOIN decisions USING (id, trace_id) WHERE chunk = ? AND trace_id = ?"


class TraceIndex:
    """The index over the table `decisions` of a database.

    `add`, `remove` and `seal` are called within the writer's transaction, `committed` or `rolled_back` after it; `find`
    may be called from any thread with a connection of its own, and knows what was committed.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        """Brings the index up to the table, which takes seconds for a million rows that no chunk holds yet."""
        self._db = db
        db.executescript(_SCHEMA)
        self._lasts: tuple[int, ...] = tuple(last for (last,) in db.execute("SELECT last FROM chunks ORDER BY last"))
        self._sieve = Sieve(dict(db.execute("SELECT last, filter FROM chunks")))
        self._newest: dict[bytes, int] = {}
        self._forget_changes()
        self._seal_former()
        self._newest = self._unsealed(self.last_sealed)

    def find(self, db: sqlite3.Connection, trace_ids: Sequence[bytes]) -> dict[bytes, int]:
        """The rows of those of these traces that have one."""
        newest = self._newest  # looked at first: what leaves it is in a chunk by then
        found = {trace_id: row for trace_id in trace_ids if (row := newest.get(trace_id)) is not None}
        others = [trace_id for trace_id in trace_ids if trace_id not in found]
        if others and self._lasts:
            for trace_id, chunk in self._sieve.candidates(others):
                for (row,) in db.execute(_FIND, (chunk, trace_id)):
                    found[trace_id] = row
        return found

    def find_now(self, trace_ids: Sequence[bytes]) -> dict[bytes, int]:
        """As `find`, for the writer: with what its transaction has changed so far."""
        rows = self.find(self._db, trace_ids) | {i: self._changed[i] for i in trace_ids if i in self._changed}
        return {trace_id: row for trace_id, row in rows.items() if row is not None}

    def scored(self, db: sqlite3.Connection, condition: str, values: Sequence[float], before: int) -> Iterator[int]:
        """The chunks' rows below `before` whose `p_wrong` meets a condition, newest first."""
        above = bisect_left(self._lasts, before)
        rows = db.execute(
            f"SELECT chunk, id FROM chunks CROSS JOIN chunk_scores ON chunk = last WHERE last <= ? AND {condition} "
            "ORDER BY last DESC",
            (self._lasts[above] if above < len(self._lasts) else before, *values),
        )
        for _, of_chunk in itertools.groupby(rows, key=itemgetter(0)):
            yield from sorted((row for _, row in of_chunk if row < before), reverse=True)

    @property
    def last_sealed(self) -> int:
        """The last row that is in a chunk."""
        return self._lasts[-1] if self._lasts else 0

    # -- within a transaction

    def add(self, trace_id: bytes, row: int, p_wrong: float | None) -> None:
        """A row was inserted; rows come in their order, but for those that are written again after an erasure."""
        self._changed[trace_id] = row
        if row <= self.last_sealed:
            chunk = self._chunk_of(row)
            self._db.execute("INSERT INTO chunk_ids VALUES (?, ?, ?)", (chunk, trace_id, row))
            if p_wrong is not None:
                self._db.execute("INSERT INTO chunk_scores VALUES (?, ?, ?)", (chunk, p_wrong, row))
            self._write_filter(chunk)

    def remove(self, gone: Iterable[OldRow]) -> None:
        """Rows were deleted, each given with its trace id and score: nothing points to them any more."""
        chunks = set[int]()
        for row, trace_id, p_wrong in gone:
            self._changed[trace_id] = None
            if row <= self.last_sealed:
                chunk = self._chunk_of(row)
                chunks.add(chunk)
                self._db.execute("DELETE FROM chunk_ids WHERE chunk = ? AND trace_id = ?", (chunk, trace_id))
                self._db.execute(
                    "DELETE FROM chunk_scores WHERE chunk = ? AND p_wrong = ? AND id = ?", (chunk, p_wrong, row)
                )
        for chunk in chunks:
            if self._db.execute("SELECT 1 FROM chunk_ids WHERE chunk = ? LIMIT 1", (chunk,)).fetchone() is None:
                self._db.execute("DELETE FROM chunks WHERE last = ?", (chunk,))
                self._filters[chunk] = None

    def seal(self) -> None:
        """Make chunks of the newest rows, when there are enough of them."""
        if len(self._newest) + len(self._changed) < CHUNK_ROWS:
            return
        after = self.last_sealed
        while (last := self._full(after)) is not None:
            self._seal_one(after, last)
            after = last
        self._rest = self._unsealed(after)

    def _seal_one(self, after: int, last: int) -> None:
        within = (last, after, last)
        self._db.execute(
            "INSERT INTO chunk_ids SELECT ?, trace_id, id FROM decisions WHERE id > ? AND id <= ? ORDER BY trace_id",
            within,
        )
        self._db.execute(
            "INSERT INTO chunk_scores SELECT ?, p_wrong, id FROM decisions "
            "WHERE id > ? AND id <= ? AND p_wrong IS NOT NULL ORDER BY p_wrong, id",
            within,
        )
        self._write_filter(last)

    def committed(self) -> None:
        """The transaction holds: `find` knows of it from now on."""
        for chunk, filter_ in self._filters.items():
            if filter_ is None:
                self._sieve.drop(chunk)
            else:
                self._sieve.put(chunk, filter_)
        if self._filters:
            gone = {chunk for chunk, filter_ in self._filters.items() if filter_ is None}
            self._lasts = tuple(sorted({*self._lasts, *self._filters} - gone))
        if self._rest is not None:
            self._newest = self._rest
        else:
            for trace_id, row in self._changed.items():
                if row is None:
                    self._newest.pop(trace_id, None)
                elif row > self.last_sealed:
                    self._newest[trace_id] = row
        self._forget_changes()

    def rolled_back(self) -> None:
        """Nothing of the transaction was written."""
        self._forget_changes()

    def _seal_former(self) -> None:
        """Make chunks of a record that was made before there were any; goes on where it was interrupted."""
        chunks = 0
        while (last := self._full(self.last_sealed)) is not None:
            self._db.execute("BEGIN IMMEDIATE")
            self._seal_one(self.last_sealed, last)
            self._db.execute("COMMIT")
            self.committed()
            chunks += 1
        self._db.executescript(_FORMER)
        if chunks:
            log.info("indexed %d decisions of a record that an earlier version made", chunks * CHUNK_ROWS)

    def _forget_changes(self) -> None:
        self._changed: dict[bytes, int | None] = {}  # trace id → its row; `None`: it has none any more
        self._filters: dict[int, bytes | None] = {}  # chunk → its filter; `None`: the chunk is empty and gone
        self._rest: dict[bytes, int] | None = None  # after `seal`: what is in no chunk

    def _full(self, after: int) -> int | None:
        """The last row of the chunk that begins after a row; `None` when it is not full."""
        row = self._db.execute(
            "SELECT id FROM decisions WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", (after, CHUNK_ROWS - 1)
        ).fetchone()
        return row and row[0]

    def _unsealed(self, after: int) -> dict[bytes, int]:
        return dict(self._db.execute("SELECT trace_id, id FROM decisions WHERE id > ?", (after,)))

    def _chunk_of(self, row: int) -> int:
        return self._lasts[bisect_left(self._lasts, row)]

    def _write_filter(self, chunk: int) -> None:
        ids = [trace_id for (trace_id,) in self._db.execute("SELECT trace_id FROM chunk_ids WHERE chunk = ?", (chunk,))]
        self._filters[chunk] = filter_of(ids)
        self._db.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?)", (chunk, self._filters[chunk]))
