"""Which rows a search by time need look at, at a cost that does not grow with the record.

Rows are numbered as they are decided, so times and numbers grow together, but for a clock that jumps and for replicas
whose clocks differ. For every block of rows the table `times` has the earliest and the latest time in it: the rows
from some time on are in no block before the first whose latest is as late. What is found there is compared row by row.
"""

import sqlite3

BLOCK_BITS = 8
_SCHEMA = "CREATE TABLE IF NOT EXISTS times (block INTEGER PRIMARY KEY, low TEXT NOT NULL, high TEXT NOT NULL)"
# A record of an earlier version, or one that such a version has written to since: it only adds rows at the end.
_CATCH_UP = f"""
INSERT OR REPLACE INTO times
SELECT id >> {BLOCK_BITS}, min(decided_at), max(decided_at) FROM decisions
WHERE id >= (SELECT coalesce(max(block), 0) << {BLOCK_BITS} FROM times) GROUP BY 1
"""
_NOTE = """
INSERT INTO times VALUES (?, ?, ?)
ON CONFLICT (block) DO UPDATE SET low = min(low, excluded.low), high = max(high, excluded.high)
"""
# `+` keeps SQLite from an index over times, whose rows it would have to sort by number.
SINCE = f"+decided_at >= ? AND id >= (SELECT block << {BLOCK_BITS} FROM times WHERE high >= ? ORDER BY block LIMIT 1)"
UNTIL = (
    f"+decided_at < ? AND id < "
    f"(SELECT (block + 1) << {BLOCK_BITS} FROM times WHERE low < ? ORDER BY block DESC LIMIT 1)"
)
"""Conditions on the table `decisions`, each with the moment twice."""


class TimeIndex:
    """Keeps `times` for the table `decisions` of a database; everything is called within the writer's transaction, but
    for `rolled_back`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        """Brings the index up to the table, which takes a second for a million rows that it has not seen."""
        self._db = db
        db.execute(_SCHEMA)
        db.execute(_CATCH_UP)
        self._new: dict[int, tuple[str, str]] = {}

    def add(self, row: int, decided_at: str) -> None:
        """A row was inserted."""
        block = row >> BLOCK_BITS
        low, high = self._new.get(block, (decided_at, decided_at))
        self._new[block] = min(low, decided_at), max(high, decided_at)

    def write(self) -> None:
        """Write down what was added."""
        self._db.executemany(_NOTE, [(block, low, high) for block, (low, high) in self._new.items()])
        self._new = {}

    def trim(self) -> None:
        """Forget the blocks before the oldest row."""
        self._db.execute(f"DELETE FROM times WHERE block < (SELECT min(id) >> {BLOCK_BITS} FROM decisions)")

    def rolled_back(self) -> None:
        """Nothing of what was added is there."""
        self._new = {}
