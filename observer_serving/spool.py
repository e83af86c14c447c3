"""The spool: what the service hands to the pipeline, as sealed Parquet files.

Three folders (`decisions/`, `exports/`, `traces/`), one schema each (`observer_core.decisions`). A file appears whole,
by rename, and never changes afterwards; its name sorts by the time it was sealed. Rows wait in memory until a file is
sealed: whoever adds them keeps their source until `flush` has returned, and adds them again after a crash.
"""

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from observer_core.decisions import Decision, decision_row
from observer_core.files import remove_unfinished, whole_file
from observer_core.traces.trace import Trace

log = logging.getLogger(__name__)

DECISIONS, EXPORTS, TRACES = "decisions", "exports", "traces"
_TABLES = (DECISIONS, EXPORTS, TRACES)


class Spool:
    """Collects rows and seals them; may be used from any thread.

    A table is due when it has `max_rows` rows or its oldest row is `max_age_s` old. It is sealed before the next row is
    added (one that is refused has not been taken), or by `seal_due`, for a quiet service.
    """

    def __init__(
        self, root: Path, *, max_rows: int, max_age_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._max_rows = max_rows
        self._max_age_s = max_age_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = {table: [] for table in _TABLES}
        self._since: dict[str, float] = {}
        for table in _TABLES:
            remove_unfinished(root / table)

    def add_decision(self, decision: Decision, trace: Trace | None = None, *, root_span_id: str = "") -> None:
        """One row of `decisions/` and, with a kept trace, one of `traces/`.

        Raises:
            ObserverError: a file was due and the disk refused it; nothing was added, the rows before stay.
        """
        rows = {DECISIONS: decision_row(decision)}
        if trace is not None:
            rows[TRACES] = {
                "trace_id": decision.trace_id,
                "root_span_id": root_span_id,
                "project": decision.project,
                "decided_at": decision.decided_at,
                "trace": json.dumps(trace.to_json()),
            }
        self._add(rows)

    def add_shadow(self, trace_id: str, name: str, score: dict[str, Any]) -> bool:
        """Complete a decision that is in no sealed file yet; whether there was one."""
        with self._lock:
            row = next((row for row in reversed(self._rows[DECISIONS]) if row["trace_id"] == trace_id), None)
            if row is not None:
                row["shadow"] = json.dumps(json.loads(row["shadow"]) | {name: score}, separators=(",", ":"))
            return row is not None

    def add_export(self, *, trace_id: str, exporter: str, outcome: str, spans: int, at: str) -> None:
        """A later outcome, as one row of `exports/`; raises as `add_decision`."""
        row = {"trace_id": trace_id, "exporter": exporter, "outcome": outcome, "spans": spans, "at": at}
        self._add({EXPORTS: row})

    def seal_due(self) -> None:
        """Seal the tables that are due.

        Raises:
            ObserverError: the disk refused one; its rows stay.
        """
        with self._lock:
            self._seal_due(_TABLES)

    def flush(self) -> None:
        """Seal everything; after it returns every row added before is on disk. Raises as `seal_due`."""
        with self._lock:
            for table in _TABLES:
                self._seal(table)

    def erase(self, trace_id: str) -> int:
        """Remove a trace (hex) from the sealed files, each rewritten whole under its name; how many rows there were.

        Raises:
            ObserverError: the disk refused.
        """
        with self._lock:
            for rows in self._rows.values():
                rows[:] = [row for row in rows if row["trace_id"] != trace_id]
        return erase_rows(self._root, trace_id)

    def remove_before(self, moment: float) -> int:
        """Remove sealed files older than `moment` (UNIX seconds); how many."""
        old = [path for path in _sealed(self._root) if path.stat().st_mtime < moment]
        for path in old:
            path.unlink()
        return len(old)

    @property
    def waiting(self) -> int:
        """Rows that are in no sealed file yet."""
        return sum(len(rows) for rows in self._rows.values())

    def _add(self, rows: Mapping[str, dict[str, Any]]) -> None:
        """A row for each of these tables, or none at all."""
        with self._lock:
            self._seal_due(rows)
            for table, row in rows.items():
                if not self._rows[table]:
                    self._since[table] = self._monotonic()
                self._rows[table].append(row)

    def _seal_due(self, tables: Iterable[str]) -> None:
        for table in tables:
            if self._is_due(table):
                self._seal(table)

    def _is_due(self, table: str) -> bool:
        rows = self._rows[table]
        return bool(rows) and (len(rows) >= self._max_rows or self._monotonic() - self._since[table] >= self._max_age_s)

    def _seal(self, table: str) -> None:
        rows = self._rows[table]
        if not rows:
            return
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = self._root / table / f"{stamp}-{uuid.uuid4().hex[:12]}.parquet"
        with whole_file(path) as aside:
            try:
                _write_parquet(table, rows, aside)
            except _UNWRITABLE:
                good = [row for row in rows if _is_writable(table, row)]
                _write_parquet(table, good, aside)
        rows.clear()


def _write_parquet(table: str, rows: list[dict[str, Any]], file: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(_table(table, rows), file, compression="zstd")


def _table(table: str, rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    from observer_core.spool_tables import DECISION_SCHEMA, EXPORT_SCHEMA, TRACE_SCHEMA

    schema = {DECISIONS: DECISION_SCHEMA, EXPORTS: EXPORT_SCHEMA, TRACES: TRACE_SCHEMA}[table]
    return pa.Table.from_pylist(rows, schema=schema)


_UNWRITABLE = (ValueError, TypeError, OverflowError)  # pyarrow's own are among them
"""What a row raises whose values do not fit its columns."""


def _is_writable(table: str, row: dict[str, Any]) -> bool:
    """Whether a row fits its columns. One that does not is a fault of ours, and must not keep all others from the disk:
    the log names its trace, whose decision is in the record."""
    try:
        _table(table, [row])
    except _UNWRITABLE:
        log.exception("the row of %s about trace %s does not fit and is left out of the spool", table, row["trace_id"])
        return False
    return True


def erase_rows(root: Path, trace_id: str) -> int:
    """Remove a trace from all sealed files of a spool."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    erased = 0
    for path in _sealed(root):
        keep = [each != trace_id for each in pq.read_table(path, columns=["trace_id"])["trace_id"].to_pylist()]
        gone = keep.count(False)
        if not gone:
            continue
        left = pq.read_table(path).filter(pa.array(keep))
        modified = path.stat().st_mtime
        with whole_file(path) as aside:
            pq.write_table(left, aside, compression="zstd")
            os.utime(aside, (modified, modified))
        erased += gone
    return erased


def _sealed(root: Path) -> list[Path]:
    return sorted(path for table in _TABLES for path in (root / table).glob("[!.]*.parquet"))
