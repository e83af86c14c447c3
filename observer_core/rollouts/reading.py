"""Read a rollout log, a file or a folder of Parquet and JSONL files, as canonical batches in constant memory.

What is broken is named and counted; the rest is read. See `observer_core.rollouts.columns` for the canonical columns.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from observer_core.errors import InputError
from observer_core.rollouts.canonical import Canoniser, prompt_text
from observer_core.rollouts.columns import Columns, resolve_columns, rollout_schema, step_in_name

BATCH_BYTES = 16 * 1024 * 1024
BATCH_ROWS = 4096
SUFFIXES = (".parquet", ".jsonl", ".ndjson")


@dataclass(slots=True)
class Problems:
    """What was wrong with a log: counts per kind, and the first places of each."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, place: str) -> None:
        self.counts[kind] += 1
        shown = self.places.setdefault(kind, [])
        if len(shown) < 5:
            shown.append(place)

    def lines(self) -> list[str]:
        """One line per kind of problem."""
        return [
            f"{kind}: {count} ({'; '.join(self.places[kind])}{'; …' if count > len(self.places[kind]) else ''})"
            for kind, count in self.counts.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return {kind: {"count": count, "first": self.places[kind]} for kind, count in self.counts.items()}


class RolloutLog:
    """A log on disk. `columns` are the resolved names, `rewards` the logged rewards, `problems` those of the latest
    pass.

    Args:
        path: file or folder.
        columns: which column means what.
        dataset: the prompts' data set (Parquet or JSONL), joined by prompt: TRL does not log its columns (gold
        answers). run: the run's name; the folder's or file's name by default.

    Raises:
        InputError: nothing readable there, or no file has the columns needed; names them.
    """

    def __init__(
        self, path: Path, columns: Columns | None = None, *, dataset: Path | None = None, run: str | None = None
    ) -> None:
        self.path = path
        self.files = _files(path)
        self.run = run or _run_name(path)
        self.problems = Problems()
        heads = {file: head for file in self.files if (head := self._head(file))}
        names = list(dict.fromkeys(name for head in heads.values() for name in head))
        numeric = [n for n in names if any(head.get(n) for head in heads.values())]
        self.columns = resolve_columns(columns or Columns(), names, numeric)
        self._check(names)
        self.rewards = self.columns.rewards or ()
        self.schema = rollout_schema(self.rewards)
        self._dataset = _read_dataset(dataset, self.columns) if dataset else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every readable row, in order. Starts `problems` afresh."""
        self.problems = Problems()
        row = 0
        for file in self.files:
            canon = Canoniser(
                self.columns, self.schema, file.name, step_in_name(file.stem), self.problems.add, self._dataset
            )
            read = self._parquet if file.suffix == ".parquet" else self._jsonl
            count = 0
            for first, size, table in read(file):
                batch = canon.convert(table, row + first)
                count = first + size
                if batch is not None and batch.num_rows:
                    yield batch
            row += count

    def _head(self, file: Path) -> dict[str, bool]:
        """Column → whether it is numeric; empty when the file cannot be read (named again by `batches`)."""
        if file.suffix == ".parquet":
            try:
                schema = pq.read_schema(file)
            except (pa.ArrowException, OSError):
                return {}
            return {f.name: pa.types.is_floating(f.type) or pa.types.is_integer(f.type) for f in schema}
        head: dict[str, bool] = {}
        with file.open("rb") as stream:
            for _, line in zip(range(100), stream, strict=False):
                try:
                    obj = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue
                for name, value in obj.items() if isinstance(obj, dict) else ():
                    number = isinstance(value, (int, float)) and not isinstance(value, bool)
                    head[name] = head.get(name, False) or number
        return head

    def _check(self, names: list[str]) -> None:
        has_step = self.columns.step in names or any(step_in_name(file.stem) is not None for file in self.files)
        missing = [name for name in ("prompt", "completion") if getattr(self.columns, name) not in names]
        missing += [] if has_step else ["step"]
        missing += [name for name in self.columns.rewards or () if name not in names]
        if missing:
            raise InputError(
                f"{self.path} has no column for {', '.join(missing)}; "
                f"it has: {', '.join(names) or 'nothing readable'}; "
                "name the columns: --column completion=NAME, --rewards NAME,NAME"
            )

    def _parquet(self, file: Path) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        first = 0
        try:
            with pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as parquet:
                rows = parquet.metadata.num_rows
                total = sum(
                    parquet.metadata.row_group(g).total_byte_size for g in range(parquet.metadata.num_row_groups)
                )
                size = max(1, min(BATCH_ROWS, BATCH_BYTES * max(rows, 1) // max(total, 1)))
                if rows == 0:
                    self.problems.add("file without rows", file.name)
                for batch in parquet.iter_batches(batch_size=size):
                    yield first, batch.num_rows, batch
                    first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            where = f"{file.name} after row {first}" if first else file.name
            self.problems.add("unreadable file", f"{where}: {str(error).splitlines()[0][:120]}")

    def _jsonl(self, file: Path) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
        objects: list[dict[str, Any]] = []
        size = first = 0
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                try:
                    obj = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    self.problems.add("line that is not JSON", f"{file.name}:{number} ({error.msg[:60]})")
                    continue
                if not isinstance(obj, dict):
                    self.problems.add("line that is not an object", f"{file.name}:{number}")
                    continue
                objects.append(obj)
                size += len(line)
                if len(objects) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield first, len(objects), objects
                    first, objects, size = first + len(objects), [], 0
        if objects:
            yield first, len(objects), objects
        elif first == 0:
            self.problems.add("file without rows", file.name)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise InputError(f"{path} is neither Parquet nor JSONL; give a file ending in {', '.join(SUFFIXES)}")
        return [path]
    if not path.is_dir():
        raise InputError(f"no file or folder {path}; give a rollout log")
    files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file() and not p.name.startswith("."))
    if not files:
        raise InputError(f"{path} holds no Parquet or JSONL file; give the folder of a rollout log")
    return files


def _run_name(path: Path) -> str:
    resolved = path.resolve()
    if resolved.is_dir() and resolved.name == "completions":
        return resolved.parent.name
    return resolved.name if resolved.is_dir() else resolved.stem


def prompt_key(prompt: str) -> bytes:
    """The key of the join between log and data set."""
    return hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _read_dataset(path: Path, columns: Columns) -> Mapping[str, dict[str, Any]]:
    """Prompt → the data set's other columns. Held in memory: one row per prompt.

    Raises:
        InputError: unreadable, or without the prompts' column.
    """
    try:
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
        else:
            rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
    except (pa.ArrowException, OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"cannot read the data set {path}: {error}; give Parquet or JSONL") from error
    name = next((n for n in (columns.prompt, "prompt") if n and rows and n in rows[0]), None)
    if name is None:
        raise InputError(f"the data set {path} has no column {columns.prompt!r}; it must hold the log's prompts")
    return {prompt_text(row[name])[0]: {k: v for k, v in row.items() if k != name} for row in rows}
