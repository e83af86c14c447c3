"""What the findings look at: a few numbers per completion, about 90 bytes, so that a million completions fit in memory.

Texts are read once and forgotten. Rewards that Observer knows are graded again on a sample (all rows of a log of up to
`REGRADE_ROWS`), so that a logged reward can be held against its corrected twin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from observer_core.rewards.completion import KINDS, Completion, plain_completion, read_completion
from observer_core.rewards.grade import grade
from observer_core.rewards.registry import Reward, known_rewards
from observer_core.rollouts.fidelity import Fidelity
from observer_core.rollouts.groups import group_ids
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import logged_scores, looks_plain

REGRADE_ROWS = 20_000
ERROR_CODE = {kind: code for code, kind in enumerate(KINDS, 1)}
"""Parse error → code in `Features.error`; 0 means read."""


@dataclass(slots=True)
class Features:
    """One entry per completion in every array, in the log's order.

    `scores` has one column per reward of `rewards` (NaN: none); `twin` the same rewards graded again (NaN: not graded).
    `error` holds codes of `ERROR_CODE`, `error_at` indexes into `at_names`; `cited` is -1 where unread; `truncated`
    -1 where the log does not say. Digests are equal exactly when the texts are (but for hash collisions), within one
    process.
    """

    run: str
    rewards: tuple[str, ...]
    row: np.ndarray
    step: np.ndarray
    task: np.ndarray
    task_names: list[str]
    group: np.ndarray
    advantage: np.ndarray
    scores: np.ndarray
    twin: np.ndarray
    error: np.ndarray
    error_at: np.ndarray
    at_names: list[str]
    truncated: np.ndarray
    confidence: np.ndarray
    cited: np.ndarray
    length: np.ndarray
    text_digest: np.ndarray
    answer_digest: np.ndarray
    plain: bool
    fidelity: Fidelity
    steps: np.ndarray = field(init=False)
    step_index: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.steps, self.step_index = np.unique(self.step, return_inverse=True)

    def __len__(self) -> int:
        return len(self.row)

    def per_step(self, flag: np.ndarray) -> np.ndarray:
        """How many rows of each step are flagged."""
        return np.bincount(self.step_index, weights=flag, minlength=len(self.steps))

    def step_means(self, values: np.ndarray) -> np.ndarray:
        """Mean per step, NaN where a step has no value."""
        there = ~np.isnan(values)
        total = np.bincount(self.step_index, weights=np.where(there, values, 0.0), minlength=len(self.steps))
        count = np.bincount(self.step_index, weights=there, minlength=len(self.steps))
        with np.errstate(invalid="ignore"):
            return total / count

    def score(self, name: str | None) -> np.ndarray | None:
        """A reward's column, or None."""
        return self.scores[:, self.rewards.index(name)] if name in self.rewards else None

    def failed(self, *kinds: str) -> np.ndarray:
        """Rows whose completion failed in one of these ways."""
        return np.isin(self.error, [ERROR_CODE[kind] for kind in kinds])


class _Columns:
    """Growing lists of array pieces."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[np.ndarray]] = {}
        self.codes: dict[str, dict[Any, int]] = {"task": {}, "at": {}}

    def add(self, name: str, values: np.ndarray) -> None:
        self.pieces.setdefault(name, []).append(values)

    def code(self, space: str, values: Sequence[Any]) -> np.ndarray:
        codes = self.codes[space]
        return np.fromiter((codes.setdefault(v, len(codes)) for v in values), np.int32, len(values))

    def joined(self, name: str, empty: np.ndarray) -> np.ndarray:
        pieces = self.pieces.pop(name, None)
        return np.concatenate(pieces) if pieces else empty


def extract(
    log: RolloutLog,
    *,
    plain: bool | None = None,
    regrade_rows: int = REGRADE_ROWS,
    group_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Features:
    """Read the log once.

    Args:
        plain: completions are plain text; None: look at the first ones.
        regrade_rows: how many rows to grade again; beyond, ever fewer batches (the first rows are the densest).
        group_size: completions per prompt; None: inferred from the order of the prompts.
    """
    columns = _Columns()
    rewards = known_rewards(log.rewards)
    fidelity = Fidelity()
    graded_rows, stride, seen = 0, 1, 0
    for number, batch in enumerate(log.batches()):
        texts = batch.column("completion").to_pylist()
        if plain is None:
            plain = looks_plain(texts)
        twin = np.full((batch.num_rows, len(log.rewards)), np.nan, np.float32)
        if rewards and number % stride == 0:
            completions = _regrade(log, rewards, batch, plain, twin, fidelity)
            graded_rows += batch.num_rows
            if graded_rows >= regrade_rows * stride.bit_length():
                stride *= 2
        else:
            read = plain_completion if plain else read_completion
            completions = [read(text) for text in texts]
        _add(columns, log, batch, texts, completions, twin)
        seen += batch.num_rows
        if progress:
            progress(seen)
    return _features(log, columns, bool(plain), fidelity, group_size)


def _regrade(
    log: RolloutLog, rewards: Sequence[Reward], batch: pa.RecordBatch, plain: bool, twin: np.ndarray, fidelity: Fidelity
) -> list[Completion]:
    graded = grade(rewards, batch.to_pylist(), plain=plain)
    for name, scores in graded.scores.items():
        twin[:, log.rewards.index(name)] = scores
        fidelity.add(name, graded.rows, logged_scores(batch, name), scores)
    return graded.completions


def _add(
    columns: _Columns,
    log: RolloutLog,
    batch: pa.RecordBatch,
    texts: list[str],
    completions: list[Completion],
    twin: np.ndarray,
) -> None:
    size = batch.num_rows
    prompts = batch.column("prompt").to_pylist()
    tasks = batch.column("task_id").to_pylist()
    if batch.column("task_id").null_count:
        tasks = [" ".join((p or "")[-80:].split()) if t is None else t for p, t in zip(prompts, tasks, strict=True)]
    columns.add("row", batch.column("row").to_numpy())
    columns.add("step", batch.column("step").to_numpy())
    columns.add("task", columns.code("task", tasks))
    columns.add("prompt", np.fromiter((hash(p) for p in prompts), np.int64, size))
    groups = batch.column("group_id")
    given = [0] * size if groups.null_count == size else [hash(g) for g in groups.to_pylist()]
    columns.add("given_group", np.array(given, np.int64))
    columns.add("advantage", batch.column("advantage").to_numpy(zero_copy_only=False).astype(np.float32))
    scores = np.full((size, len(log.rewards)), np.nan, np.float32)
    for index, name in enumerate(log.rewards):
        scores[:, index] = logged_scores(batch, name)
    columns.add("scores", scores)
    columns.add("twin", twin)
    columns.add("error", np.array([ERROR_CODE[c.error.kind] if c.error else 0 for c in completions], np.int8))
    columns.add("error_at", columns.code("at", [c.error.at if c.error else "" for c in completions]))
    flags = batch.column("truncated").to_pylist()
    columns.add("truncated", np.array([-1 if f is None else int(f) for f in flags], np.int8))
    nan = float("nan")
    columns.add(
        "confidence", np.array([nan if c.confidence is None else c.confidence for c in completions], np.float32)
    )
    columns.add("cited", np.array([-1 if c.cited is None else min(len(c.cited), 32000) for c in completions], np.int16))
    columns.add("length", np.array([len(t) for t in texts], np.int32))
    columns.add("text_digest", np.fromiter((hash(t) for t in texts), np.int64, size))
    columns.add("answer_digest", np.fromiter((hash(c.answer) for c in completions), np.int64, size))


def _features(log: RolloutLog, columns: _Columns, plain: bool, fidelity: Fidelity, group_size: int | None) -> Features:
    def get(name: str, dtype: Any, width: int | None = None) -> np.ndarray:
        return columns.joined(name, np.zeros((0,) if width is None else (0, width), dtype))

    step, prompt, given = get("step", np.int64), get("prompt", np.int64), get("given_group", np.int64)
    return Features(
        run=log.run,
        rewards=tuple(log.rewards),
        row=get("row", np.int64),
        step=step,
        task=get("task", np.int32),
        task_names=list(columns.codes["task"]),
        group=group_ids(step, prompt, given if given.any() else None, group_size),
        advantage=get("advantage", np.float32),
        scores=get("scores", np.float32, len(log.rewards)),
        twin=get("twin", np.float32, len(log.rewards)),
        error=get("error", np.int8),
        error_at=get("error_at", np.int32),
        at_names=list(columns.codes["at"]),
        truncated=get("truncated", np.int8),
        confidence=get("confidence", np.float32),
        cited=get("cited", np.int16),
        length=get("length", np.int32),
        text_digest=get("text_digest", np.int64),
        answer_digest=get("answer_digest", np.int64),
        plain=plain,
        fidelity=fidelity,
    )
