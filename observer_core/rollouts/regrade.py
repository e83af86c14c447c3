"""Grade a whole log again, in constant memory, on several processes, and compare with what it recorded."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from observer_core.errors import InputError
from observer_core.files import whole_dir
from observer_core.rewards.completion import read_completion
from observer_core.rewards.grade import Graded, RewardFailure, grade
from observer_core.rewards.pool import RewardPool
from observer_core.rewards.registry import Reward, find_rewards, known_rewards
from observer_core.rollouts.columns import LOGGED
from observer_core.rollouts.fidelity import TOLERANCE, Fidelity
from observer_core.rollouts.reading import RolloutLog

CHUNK_ROWS = 512
_SHOWN_FAILURES = 50


@dataclass(frozen=True, slots=True)
class GradeOptions:
    """How to grade: `workers` 0 means one per CPU; `timeout` in seconds per call; `plain` None: look at the
    completions.
    """

    workers: int = 0
    timeout: float = 10.0
    plain: bool | None = None
    tolerance: float = TOLERANCE


@dataclass(slots=True)
class Regrade:
    """What a re-grade found."""

    run: str
    rows: int = 0
    steps: set[int] = field(default_factory=set)
    fidelity: Fidelity = field(default_factory=Fidelity)
    revisions: dict[str, str] = field(default_factory=dict)
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    first_failures: list[RewardFailure] = field(default_factory=list)
    parse_errors: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    switched_off: list[str] = field(default_factory=list)
    problems: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The figures for programs: the drift per reward, failures by reward and kind, problems of the input."""
        return {
            "run": self.run,
            "rows": self.rows,
            "steps": len(self.steps),
            "holds": self.fidelity.holds,
            "tolerance": self.fidelity.tolerance,
            "drift": {name: drift.to_json() for name, drift in self.fidelity.rewards.items()},
            "revisions": self.revisions,
            "changed": {name: list(pair) for name, pair in self.changed.items()},
            "failures": [{"reward": r, "kind": k, "count": n} for (r, k), n in sorted(self.failures.items())],
            "first_failures": [
                {"row": f.row, "reward": f.reward, "kind": f.kind, "message": f.message} for f in self.first_failures
            ],
            "parse_errors": dict(self.parse_errors),
            "seconds": self.seconds,
            "switched_off": self.switched_off,
            "problems": self.problems,
        }


def rewards_for(log: RolloutLog, specs: Sequence[str] = ()) -> list[Reward]:
    """The rewards to grade a log with: those named, else those of its columns that Observer knows.

    Raises:
        InputError: none are known.
    """
    rewards = find_rewards(specs) if specs else known_rewards(log.rewards)
    if not rewards:
        raise InputError(
            f"none of the log's rewards is known here ({', '.join(log.rewards) or 'it has none'}); "
            "name them: --reward COLUMN=module:function"
        )
    return rewards


def looks_plain(texts: Iterable[str]) -> bool:
    """Whether no completion is a JSON object: then completions are plain text and cannot fail to parse."""
    return not any(read_completion(text).parsed for text in texts)


def grade_batches(
    batches: Iterator[pa.RecordBatch],
    rewards: Sequence[Reward],
    options: GradeOptions,
    on_switched_off: Callable[[list[str]], None] | None = None,
) -> Iterator[tuple[pa.RecordBatch, Graded]]:
    """Canonical batches, cut at step boundaries, with their scores, in order."""
    batches = _chunks(batches)
    first = next(batches, None)
    if first is None:
        return
    plain = options.plain
    if plain is None:
        plain = looks_plain(first.column("completion").to_pylist())
    every = chain([first], batches)
    workers = options.workers or os.cpu_count() or 1
    if workers == 1 and all(reward.builtin for reward in rewards):
        for batch in every:
            yield batch, grade(rewards, batch.to_pylist(), plain=plain)
        return
    with RewardPool(rewards, workers=workers, timeout=options.timeout, plain=plain) as pool:
        yield from pool.grade(every)
        if on_switched_off:
            on_switched_off(pool.switched_off)


def regrade(
    log: RolloutLog,
    rewards: Sequence[Reward],
    options: GradeOptions,
    *,
    out: Path | None = None,
    previous: dict[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Regrade:
    """Grade the log again and compare.

    Args:
        out: folder for `regraded.parquet` (row, step, task, parse error, per reward score, seconds, error) and
        `fidelity.json`. previous: reward → revision of an earlier grading; rewards whose code changed are named.
        progress: told the number of rows after each batch.
    """
    result = Regrade(log.run, fidelity=Fidelity(options.tolerance))
    result.revisions = {reward.name: reward.revision() for reward in rewards}
    result.changed = {
        name: (previous[name], revision)
        for name, revision in result.revisions.items()
        if previous and name in previous and previous[name] != revision
    }

    def run(writer: pq.ParquetWriter | None) -> None:
        for batch, graded in grade_batches(log.batches(), rewards, options, result.switched_off.extend):
            _account(result, log, batch, graded)
            if writer is not None:
                writer.write_batch(regraded_batch(rewards, batch, graded))
            if progress:
                progress(result.rows)

    if out is None:
        run(None)
    else:
        with whole_dir(out, replace=True) as folder:
            schema = regraded_schema(rewards)
            with pq.ParquetWriter(folder / "regraded.parquet", schema, compression="zstd") as writer:
                run(writer)
            result.problems = log.problems.to_json()
            (folder / "fidelity.json").write_text(json.dumps(result.to_json(), indent=1))
    result.problems = log.problems.to_json()
    return result


def previous_revisions(folder: Path) -> dict[str, str]:
    """The revisions that an earlier re-grade left in its folder; empty when there was none."""
    file = folder / "fidelity.json"
    return json.loads(file.read_text())["revisions"] if file.is_file() else {}


def regraded_schema(rewards: Sequence[Reward]) -> pa.Schema:
    """One row per completion: what was read, then `<reward>`, `<reward>.seconds` and `<reward>.error` for each
    reward.
    """
    return pa.schema(
        [
            ("row", pa.int64()),
            ("step", pa.int64()),
            ("task_id", pa.string()),
            ("parse_error", pa.string()),
            ("parse_error_at", pa.string()),
            ("confidence", pa.float64()),
            *(
                column
                for reward in rewards
                for column in (
                    (reward.name, pa.float64()),
                    (f"{reward.name}.seconds", pa.float32()),
                    (f"{reward.name}.error", pa.string()),
                )
            ),
        ]
    )


def regraded_batch(rewards: Sequence[Reward], batch: pa.RecordBatch, graded: Graded) -> pa.RecordBatch:
    """One graded batch in `regraded_schema`."""
    errors = {(f.row, f.reward): f"{f.kind}: {f.message}" for f in graded.failures}
    rows = graded.rows.tolist()
    columns: dict[str, Any] = {
        "row": batch.column("row"),
        "step": batch.column("step"),
        "task_id": batch.column("task_id"),
        "parse_error": [r.kind for r in graded.readings],
        "parse_error_at": [r.at or None for r in graded.readings],
        "confidence": [r.confidence for r in graded.readings],
    }
    for reward in rewards:
        columns[reward.name] = pa.array(graded.scores[reward.name], pa.float64(), from_pandas=True)
        columns[f"{reward.name}.seconds"] = pa.array(graded.seconds[reward.name], pa.float32())
        columns[f"{reward.name}.error"] = pa.array([errors.get((row, reward.name)) for row in rows], pa.string())
    return pa.record_batch(columns, schema=regraded_schema(rewards))


def logged_scores(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """A reward's logged scores, NaN where there is none."""
    return batch.column(LOGGED + name).to_numpy(zero_copy_only=False).astype(np.float64)


def _account(result: Regrade, log: RolloutLog, batch: pa.RecordBatch, graded: Graded) -> None:
    result.rows += batch.num_rows
    result.steps.update(batch.column("step").to_pylist())
    failed: dict[str, set[int]] = {}
    for failure in graded.failures:
        failed.setdefault(failure.reward, set()).add(failure.row)
        result.failures[failure.reward, failure.kind] += 1
        if len(result.first_failures) < _SHOWN_FAILURES:
            result.first_failures.append(failure)
    result.parse_errors.update(r.kind for r in graded.readings if r.kind)
    for name, scores in graded.scores.items():
        result.seconds[name] = result.seconds.get(name, 0.0) + float(graded.seconds[name].sum())
        if name in log.rewards:
            result.fidelity.add(name, graded.rows, logged_scores(batch, name), scores)


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches into pieces of about `CHUNK_ROWS` at step boundaries: a TRL reward sees a step's rows in one call."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        whole = batch if held is None else _concat([held, batch])
        steps = whole.column("step").to_numpy()
        borders = np.flatnonzero(np.diff(steps)) + 1
        start = 0
        for border in borders.tolist():
            if border - start >= CHUNK_ROWS:
                yield whole.slice(start, border - start)
                start = border
        rest = whole.slice(start)
        held = rest
        if not len(borders) and rest.num_rows >= 4 * CHUNK_ROWS:
            yield rest
            held = None
    if held is not None and held.num_rows:
        yield held


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
