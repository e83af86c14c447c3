"""Taking sealed spool files of the services into the warehouse, each exactly once.

A file becomes the part of the same name in its table, so taking it twice changes nothing and the list of parts is the
list of what was taken. Spools are folders or any fsspec URL.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from observer_core.errors import InputError
from observer_core.spool_tables import DECISION_SCHEMA, EXPORT_SCHEMA, TRACE_SCHEMA
from observer_pipeline.resources.warehouse import Warehouse

KINDS = {
    "decisions": ("live_decisions", DECISION_SCHEMA),
    "exports": ("live_exports", EXPORT_SCHEMA),
    "traces": ("live_traces", TRACE_SCHEMA),
}
"""Folder of the spool → table and columns."""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A sealed file that is not in the warehouse yet: where it is, and the table and part it becomes."""

    url: str
    table: str
    part: str


def pending(spools: Sequence[str], warehouse: Warehouse) -> list[SealedFile]:
    """The sealed files that were not taken yet, by name; writers rename whole files into place, so all are complete."""
    found: list[SealedFile] = []
    for spool in spools:
        files: Any
        files, root = fsspec.url_to_fs(spool)
        source = hashlib.sha256(spool.encode()).hexdigest()[:8]
        for kind, (table, _) in KINDS.items():
            taken = set(warehouse.parts(table))
            for path in sorted(files.glob(f"{root}/{kind}/*.parquet")):
                part = f"{PurePosixPath(path).stem}-{source}"
                if part not in taken and not PurePosixPath(path).name.startswith("."):
                    found.append(SealedFile(files.unstrip_protocol(path), table, part))
    return found


def take(sealed: Sequence[SealedFile], warehouse: Warehouse) -> dict[str, int]:
    """Take files into the warehouse; returns the number of rows by table.

    Raises:
        InputError: a file is no Parquet file of its kind. The readable ones are taken first.
    """
    rows = {table: 0 for table, _ in KINDS.values()}
    broken: list[str] = []
    for file in sealed:
        try:
            data = read_sealed(file)
        except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError) as error:
            broken.append(f"{file.url} ({error})")
            continue
        warehouse.write(file.table, data, part=file.part)
        rows[file.table] += data.num_rows
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise InputError(f"cannot take the spool file {broken[0]}{more}; look at it and move it out of the spool")
    return rows


def read_sealed(file: SealedFile) -> pa.Table:
    """The rows of a sealed file in the columns of its table; extra columns of later versions are left out.

    Raises:
        pa.ArrowInvalid: not a Parquet file.
        KeyError: a column is missing.
    """
    schema = next(schema for table, schema in KINDS.values() if table == file.table)
    stream: Any
    with fsspec.open(file.url, "rb") as stream:
        return pq.read_table(stream).select(schema.names).cast(schema)
