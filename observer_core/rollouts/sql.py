"""Bounded read-only SQL: one SELECT over named tables of Parquet, with limits on time, rows, bytes and memory.

DuckDB runs in memory, in a process of its own, with access to files, network and extensions switched off and its
settings locked; it sees the tables as Arrow data sets that the process opened before. A query past its time is
interrupted, and where that does not help (one call inside one vector) the process is ended.
"""

import datetime
import decimal
import math
import multiprocessing
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from observer_core.errors import InputError, ObserverError

_GRACE = 2.0
_CELL = 20_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds per query, rows and bytes per answer, memory of the engine in MB."""

    seconds: float = 10.0
    rows: int = 1000
    bytes: int = 2_000_000
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as lists of JSON values; `truncated` names the limit that cut them, or is None."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: str | None

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class BoundedSql:
    """Runs queries over `tables` (name → folders or files of Parquet) and `views` (name → SQL, made in order).

    Raises:
        InputError: on a query that is not one SELECT, fails, or takes too long; says which.
    """

    def __init__(
        self,
        tables: Mapping[str, list[Path]],
        views: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._tables = {name: [str(path) for path in paths] for name, paths in tables.items()}
        self._views = dict(views or {})
        self.limits = limits or Limits()
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> "BoundedSql":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            assert self._pipe is not None
            self._pipe.close()
        self._process = self._pipe = None

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Answer:
        """The answer to one SELECT; `parameters` are bound by name (`$name`)."""
        with self._lock:
            if self._process is None or not self._process.is_alive():
                self.close()
                self._start()
            assert self._pipe is not None
            self._pipe.send((sql, dict(parameters or {})))
            if not self._pipe.poll(self.limits.seconds + _GRACE):
                self.close()
                raise InputError(_too_long(self.limits))
            try:
                kind, value = self._pipe.recv()
            except EOFError as error:
                self.close()
                raise InputError("the query ended its engine (too much memory?); ask for less") from error
            if kind == "error":
                raise InputError(value)
            return value

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self._tables, self._views, self.limits)
        self._process = self._context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = ours
        if not ours.poll(60):
            self.close()
            raise ObserverError("the query engine did not start within 60 s; try again when the machine is less busy")
        kind, value = ours.recv()
        if kind == "error":
            self.close()
            raise ObserverError(value)


def _too_long(limits: Limits) -> str:
    return f"the query took more than {limits.seconds:g} s; filter or aggregate more"


def _serve(pipe: Connection, tables: dict[str, list[str]], views: dict[str, str], limits: Limits) -> None:
    try:
        known: dict[str, list[str]] = {}
        connection = _connect(tables, views, limits, known)
    except Exception as error:
        pipe.send(("error", f"cannot open the tables: {type(error).__name__}: {error}"))
        return
    pipe.send(("ready", None))
    while True:
        try:
            sql, parameters = pipe.recv()
        except EOFError:
            return
        _register(connection, tables, known)
        pipe.send(_answer(connection, sql, parameters, limits))


def _connect(tables: dict[str, list[str]], views: dict[str, str], limits: Limits, known: dict[str, list[str]]) -> Any:
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{limits.memory_mb}MB",
            "temp_directory": "",
            "threads": 2,
            "python_enable_replacements": "false",
        },
    )
    _register(connection, tables, known)
    for name, sql in views.items():
        connection.execute(f'CREATE VIEW "{name}" AS {sql}')
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _register(connection: Any, tables: dict[str, list[str]], known: dict[str, list[str]]) -> None:
    """Open every table whose files are not those opened before: the service seals new ones while we run."""
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet

    for name, paths in tables.items():
        found = [f for p in map(Path, paths) for f in (p.rglob("*.parquet") if p.is_dir() else [p])]
        files = sorted(str(f) for f in found if not f.name.startswith("."))
        if not files or files == known.get(name):
            continue
        schema = pa.unify_schemas([pyarrow.parquet.read_schema(f) for f in files], promote_options="permissive")
        connection.register(name, pyarrow.dataset.dataset(files, schema=schema, format="parquet"))
        known[name] = files


def _answer(connection: Any, sql: str, parameters: dict[str, Any], limits: Limits) -> tuple[str, Any]:
    import duckdb

    timer = threading.Timer(limits.seconds, connection.interrupt)
    timer.start()
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            return "error", "only one SELECT is allowed: no writes, no settings, no second statement"
        cursor = connection.execute(statements[0], parameters)
        columns = [column[0] for column in cursor.description]
        rows: list[list[Any]] = []
        size, truncated = 0, None
        while truncated is None and (row := cursor.fetchone()) is not None:
            if len(rows) == limits.rows:
                truncated = f"rows: only the first {limits.rows} are shown"
                break
            values = [_plain(value) for value in row]
            size += sum(len(str(value)) for value in values)
            if size > limits.bytes:
                truncated = f"bytes: the answer is longer than {limits.bytes}"
                break
            rows.append(values)
        return "answer", Answer(columns, rows, truncated)
    except duckdb.InterruptException:
        return "error", _too_long(limits)
    except (duckdb.Error, RuntimeError, UnicodeError) as error:
        return "error", f"the query failed: {' '.join(str(error).split())[:400]}"
    finally:
        timer.cancel()


def _plain(value: Any) -> Any:
    """A JSON value; long texts cut."""
    if isinstance(value, str):
        return value if len(value) <= _CELL else value[:_CELL] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value)
