"""Labeled traces as JSONL: one JSON object a line, read with every bad line named."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from observer_core.errors import InputError
from observer_core.files import write_whole
from observer_core.traces.trace import FieldError, Trace


@dataclass(frozen=True, slots=True)
class LineProblem:
    """A line that could not be used: `line` counts from 1."""

    file: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


MAX_DEPTH = 100
"""Deepest nesting of arrays and objects that is read: who walks over it later does so by recursion."""


def parse_json(text: str) -> Any:
    """Strict JSON with Python's own numbers (big integers stay whole, `NaN` is refused), at most `MAX_DEPTH` deep.

    Raises:
        ValueError: not JSON; says why and where.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels; send a flatter value"


def _depth(value: Any) -> int:
    """Levels of arrays and objects, counted until there are more than `MAX_DEPTH`."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH + 1:
        inner = [item for item in level if isinstance(item, list | dict)]
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
        depth += bool(inner)
    return depth


def parse_trace(text: str) -> Trace:
    """One trace from its JSON text.

    Raises:
        InputError: not JSON, or a field is unusable.
    """
    try:
        return Trace.from_json(parse_json(text))
    except FieldError:
        raise
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from error


def scan_jsonl(path: Path) -> tuple[list[Trace], list[LineProblem]]:
    """Read all usable traces of a file and the problem of every other line; blank lines are skipped.

    Raises:
        InputError: the file cannot be read at all.
    """
    traces: list[Trace] = []
    problems: list[LineProblem] = []
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a JSONL file of traces") from error
    for number, raw in enumerate(data.split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            traces.append(parse_trace(raw.decode("utf-8")))
        except UnicodeDecodeError as error:
            problems.append(LineProblem(path, number, f"not UTF-8 at byte {error.start} of the line"))
        except InputError as error:
            problems.append(LineProblem(path, number, str(error)))
    return traces, problems


def read_jsonl(path: Path, *, skip_invalid: bool = False) -> list[Trace]:
    """Read a JSONL file of traces; refuse it when any line is bad unless `skip_invalid`.

    Raises:
        InputError: unreadable, empty, or (without `skip_invalid`) a bad line; names file, line and field, and says how
            many rows were usable.
    """
    traces, problems = scan_jsonl(path)
    if problems and not (skip_invalid and traces):
        rows = len(traces) + len(problems)
        more = f" (and {len(problems) - 1} more bad lines)" if len(problems) > 1 else ""
        mend = "mend the lines or pass --skip-invalid" if traces else "give a JSONL file of traces"
        raise InputError(f"{problems[0]}{more}; {len(traces)} of {rows} rows were usable; {mend}")
    if not traces:
        raise InputError(f"{path} holds no traces; give a JSONL file with one trace a line")
    return traces


def write_jsonl(path: Path, traces: Iterable[Trace]) -> int:
    """Write traces to `path`, whole or not at all; returns how many."""
    lines = [json.dumps(trace.to_json(), ensure_ascii=False) for trace in traces]
    write_whole(path, "".join(line + "\n" for line in lines).encode())
    return len(lines)
