"""The warehouse: a table is a folder of Parquet files, each replaced atomically; DuckDB reads over them in memory.

No database file means no lock: the pipeline, people's queries and the MCP server read side by side, and a reader sees
each part either as it was or as it is now. A table with one part, `data`, is replaced as a whole; a table that grows
gets one part per writer's unit (a spool file, a promotion, a family), so writing a unit twice changes nothing.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from dagster_duckdb import DuckDBResource
from duckdb import DuckDBPyConnection

from observer_core.errors import InputError
from observer_core.files import whole_file

_TABLE = re.compile(r"[a-z][a-z0-9_]*")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Warehouse(dg.ConfigurableResource):
    """Tables under `root`. Queries see each table as a view of its name."""

    root: str
    duckdb: DuckDBResource

    def folder(self, table: str) -> Path:
        """The folder of a table, whether or not it exists yet."""
        if not _TABLE.fullmatch(table):
            raise InputError(f"'{table}' is no table name; use lower-case letters, digits and _")
        return Path(self.root) / table

    def parts(self, table: str) -> list[str]:
        """The names of a table's parts, sorted; none for a table that was never written."""
        folder = self.folder(table)
        return sorted(file.stem for file in folder.glob("*.parquet")) if folder.is_dir() else []

    def write(self, table: str, data: pa.Table, part: str = "data") -> Path:
        """Replace one part of `table` in a single step.

        Raises:
            ObserverError: the disk refused.
        """
        if not _PART.fullmatch(part):
            raise InputError(f"'{part}' is no name for a part of table {table}; use letters, digits, ., - and _")
        file = self.folder(table) / f"{part}.parquet"
        with whole_file(file) as aside:
            pq.write_table(data, aside)
        return file

    def read(self, table: str) -> pa.Table:
        """All parts of `table`, in the order of their names.

        Raises:
            InputError: the table was never written.
        """
        parts = self.parts(table)
        if not parts:
            raise InputError(f"the warehouse has no table '{table}' yet; materialize the asset of that name first")
        tables = []
        for part in parts:
            with pq.ParquetFile(self.folder(table) / f"{part}.parquet") as file:
                tables.append(file.read())
        return pa.concat_tables(tables, promote_options="default")

    def read_or(self, table: str, empty: pa.Schema) -> pa.Table:
        """All parts of `table`, or no rows of the schema `empty` when it was never written."""
        return self.read(table) if self.parts(table) else empty.empty_table()

    @contextlib.contextmanager
    def connect(self) -> Iterator[DuckDBPyConnection]:
        """A DuckDB connection in memory with a view per table, closed however the block ends.

        `DuckDBResource.get_connection` alone would leave it open after an exception.
        """
        with self.duckdb.get_connection() as connection:
            try:
                for folder in sorted(Path(self.root).glob("*/")):
                    if _TABLE.fullmatch(folder.name) and self.parts(folder.name):
                        files = str(folder / "*.parquet").replace("'", "''")
                        connection.execute(
                            f"CREATE VIEW {folder.name} AS SELECT * FROM read_parquet('{files}', union_by_name=true)"
                        )
                yield connection
            finally:
                connection.close()

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The answer of one SQL statement over the tables; `$name` in it takes `parameters["name"]`."""
        with self.connect() as connection:
            return connection.sql(sql, params=dict(parameters or {})).to_arrow_table()
