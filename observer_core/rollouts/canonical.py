"""Turn a batch of a log, as it is stored, into the canonical columns; count what does not fit."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute

from observer_core.rewards.completion import completion_text, message_text
from observer_core.rollouts.columns import ALIASES, LOGGED, Columns

Report = Callable[[str, str], None]
pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers


class Canoniser:
    """Converts the batches of one file.

    Args:
        place: the file's name, for reports.
        file_step: the step that the file's name states, for files without a step column.
        report: told of every problem: kind, place.
        dataset: prompt → columns to join.
    """

    def __init__(
        self,
        columns: Columns,
        schema: pa.Schema,
        place: str,
        file_step: int | None,
        report: Report,
        dataset: Mapping[str, dict[str, Any]] | None,
    ) -> None:
        self._columns, self._schema, self._place, self._file_step = columns, schema, place, file_step
        self._report, self._dataset = report, dataset
        self._mapped = columns.mapped()
        self._whole_file_reported = False

    def convert(self, stored: Any, first: int) -> pa.RecordBatch | None:
        """Canonical rows of a record batch or a list of JSON objects, numbered from `first`.

        Rows without step or completion are left out and reported.
        """
        names = stored.schema.names if isinstance(stored, pa.RecordBatch) else None
        if names is not None:
            missing = [n for n in ("prompt", "completion") if self._mapped.get(n) not in names]
            if missing or (self._mapped.get("step") not in names and self._file_step is None):
                if not self._whole_file_reported:
                    lacking = ", ".join(missing or ["step"])
                    self._report("file without a needed column", f"{self._place} has no column for {lacking}")
                    self._whole_file_reported = True
                return None
        get = self._columns_of(stored)
        size = stored.num_rows if isinstance(stored, pa.RecordBatch) else len(stored)
        row = pa.array(range(first, first + size), pa.int64())
        step = self._step(get(self._mapped.get("step")), size, first)
        prompt, prompt_messages = self._texts(get(self._mapped["prompt"]), size, prompt_text)
        completion, completion_messages = self._texts(get(self._mapped["completion"]), size, completion_text)
        out: dict[str, Any] = {
            "row": row,
            "step": step,
            "prompt": prompt,
            "completion": completion,
            "messages": _messages(prompt_messages, completion_messages, size),
            "advantage": self._numbers(get(self._mapped.get("advantage")), size, first, "advantage"),
        }
        joined = self._join(prompt)
        for name in ("task_id", "group_id", "reference"):
            out[name] = _strings(self._or_joined(get(self._mapped.get(name)), joined, name), size)
        out["citations"] = _lists(self._or_joined(get(self._mapped.get("citations")), joined, "citations"), size)
        out["truncated"] = _flags(get(self._mapped.get("truncated")), size)
        out["extra"] = self._extra(stored, joined, size)
        for name in self._columns.rewards or ():
            out[LOGGED + name] = self._numbers(get(name), size, first, name)
        batch = pa.RecordBatch.from_arrays([out[f.name].cast(f.type) for f in self._schema], schema=self._schema)
        return self._usable(batch)

    def _columns_of(self, stored: Any) -> Callable[[str | None], Any]:
        """Column name → Arrow array or list of values; None when there is no such column."""
        if isinstance(stored, pa.RecordBatch):
            have = set(stored.schema.names)
            return lambda name: stored.column(name) if name in have else None
        return lambda name: None if name is None else [obj.get(name) for obj in stored]

    def _usable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        usable = batch
        for name in ("step", "completion"):
            column = batch.column(name)
            if column.null_count:
                for number in batch.column("row").filter(column.is_null()).to_pylist():
                    self._report(f"row without {name}", f"{self._place} row {number}")
        if batch.column("step").null_count or batch.column("completion").null_count:
            keep = pc.and_(batch.column("step").is_valid(), batch.column("completion").is_valid())
            usable = batch.filter(keep)
        return usable

    def _step(self, column: Any, size: int, first: int) -> Any:
        if column is None or (
            isinstance(column, list) and all(v is None for v in column) and self._file_step is not None
        ):
            return pa.array([self._file_step] * size, pa.int64())
        stored: Any = column
        if isinstance(column, pa.Array) and pa.types.is_integer(stored.type):
            return stored.cast(pa.int64())
        numbers = self._numbers(column, size, first, "step")
        return pa.array([None if v is None or v != int(v) else int(v) for v in numbers.to_pylist()], pa.int64())

    def _numbers(self, column: Any, size: int, first: int, name: str) -> Any:
        """Floats; NaN is null (no score), infinities and what is no number are reported and null."""
        if column is None:
            return pa.nulls(size, pa.float64())
        if isinstance(column, pa.Array) and (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            numbers = column.cast(pa.float64(), safe=False)
            finite = pc.is_finite(numbers)
            if pc.all(pc.fill_null(finite, True)).as_py():
                return numbers
            for number in pc.indices_nonzero(pc.is_inf(numbers)).to_pylist():
                self._report(f"infinite {name}", f"{self._place} row {first + number}")
            return pc.if_else(finite, numbers, pa.scalar(None, pa.float64()))
        values = column.to_pylist() if isinstance(column, pa.Array) else column
        return pa.array([self._number(v, first + i, name) for i, v in enumerate(values)], pa.float64())

    def _number(self, value: Any, row: int, name: str) -> float | None:
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            self._report(f"{name} that is no number", f"{self._place} row {row}: {str(value)[:40]!r}")
            return None
        if math.isinf(number):
            self._report(f"infinite {name}", f"{self._place} row {row}")
        return number if math.isfinite(number) else None

    def _texts(self, column: Any, size: int, convert: Callable[[Any], tuple[str, Any]]) -> tuple[Any, list[Any] | None]:
        if isinstance(column, pa.Array) and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return column.cast(pa.large_string()), None
        values = column.to_pylist() if isinstance(column, pa.Array) else column or [None] * size
        texts: list[str | None] = []
        messages: list[Any] = []
        for value in values:
            text, message = (None, None) if value is None else convert(value)
            texts.append(text if text is None else text.encode("utf-8", "replace").decode())
            messages.append(message)
        return pa.array(texts, pa.large_string()), messages if any(m is not None for m in messages) else None

    def _join(self, prompts: Any) -> list[dict[str, Any]] | None:
        if self._dataset is None:
            return None
        found = [self._dataset.get(prompt) for prompt in prompts.to_pylist()]
        for missing in (i for i, row in enumerate(found) if row is None):
            self._report("prompt that is not in the data set", f"{self._place}: {str(prompts[missing])[:60]!r}")
        return [row or {} for row in found]

    def _or_joined(self, column: Any, joined: list[dict[str, Any]] | None, name: str) -> Any:
        if column is not None or joined is None:
            return column
        return [
            next((row[a] for a in (self._mapped.get(name), *ALIASES[name]) if a and a in row), None) for row in joined
        ]

    def _extra(self, stored: Any, joined: list[dict[str, Any]] | None, size: int) -> Any:
        """Every other column as JSON, and those read under another name also under their own."""
        core = {name for name in (self._mapped.get(n) for n in ("step", "prompt", "completion", "advantage")) if name}
        core |= {canonical for canonical, name in self._mapped.items() if canonical == name} | set(
            self._columns.rewards or ()
        )
        if isinstance(stored, pa.RecordBatch):
            others = [name for name in stored.schema.names if name not in core and not name.startswith("__index_level")]
            if not others and joined is None:
                return pa.nulls(size, pa.large_string())
            rows = stored.select(others).to_pylist() if others else [{}] * size
        else:
            rows = [{name: value for name, value in obj.items() if name not in core} for obj in stored]
        if joined is not None:
            rows = [joined[i] | row for i, row in enumerate(rows)]
        texts = [orjson.dumps(r, default=str, option=orjson.OPT_NON_STR_KEYS).decode() if r else None for r in rows]
        return pa.array(texts, pa.large_string())


def prompt_text(value: Any) -> tuple[str, Any]:
    """A prompt as one text, and the messages it was made of (None for a text)."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, list) and value and all(isinstance(m, dict) for m in value):
        return "\n\n".join(f"{m.get('role', 'user')}: {message_text(m)}" for m in value), value
    return orjson.dumps(value, default=str).decode(), None


def _messages(prompts: list[Any] | None, completions: list[Any] | None, size: int) -> Any:
    if completions is None:
        return pa.nulls(size, pa.large_string())
    prompts = prompts or [None] * size
    texts = [
        None if c is None else orjson.dumps({"prompt": p, "completion": c}).decode()
        for p, c in zip(prompts, completions, strict=True)
    ]
    return pa.array(texts, pa.large_string())


def _strings(column: Any, size: int) -> Any:
    if column is None:
        return pa.nulls(size, pa.string())
    if isinstance(column, pa.Array) and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.cast(pa.string())
    values = column.to_pylist() if isinstance(column, pa.Array) else column
    return pa.array([_string(v) for v in values], pa.string())


def _string(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1:
        return _string(value[0])
    return orjson.dumps(value, default=str).decode()


def _lists(column: Any, size: int) -> Any:
    if column is None:
        return pa.nulls(size, pa.list_(pa.string()))
    if isinstance(column, pa.Array) and pa.types.is_list(column.type) and pa.types.is_string(column.type.value_type):
        return column
    values = column.to_pylist() if isinstance(column, pa.Array) else column
    return pa.array([_list(v) for v in values], pa.list_(pa.string()))


def _list(value: Any) -> list[str] | None:
    if isinstance(value, str):
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError:
            return [value]
        value = parsed if isinstance(parsed, list) else [value]
    return None if value is None else [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _flags(column: Any, size: int) -> Any:
    """A boolean column, or a finish reason of which `length` means truncated."""
    if column is None:
        return pa.nulls(size, pa.bool_())
    values = column.to_pylist() if isinstance(column, pa.Array) else column
    return pa.array(
        [v if v is None or isinstance(v, bool) else v in ("length", "max_tokens", 1) for v in values], pa.bool_()
    )
