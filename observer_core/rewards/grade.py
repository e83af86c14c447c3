"""Run rewards over rows in this process: every call timed, every exception recorded, nothing turned into a zero."""

import asyncio
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson

from observer_core.rewards.completion import Completion, Reading, plain_completion, read_completion, reading_of
from observer_core.rewards.registry import Reward

INTERNAL = frozenset({"row", "step", "prompt", "completion", "messages", "extra"})
"""Columns of a row that TRL does not hand to reward functions under these names."""


@dataclass(frozen=True, slots=True)
class RewardFailure:
    """A call that gave no score. `kind`: `exception`, `timeout`, `value` (not a finite number), `length`, `not_run`."""

    row: int
    reward: str
    kind: str
    message: str


@dataclass(slots=True)
class Graded:
    """Scores of consecutive rows. NaN: the reward does not apply to the row, or failed (then it is in `failures`).

    `completions` are there only in the process that read them.
    """

    rows: np.ndarray
    scores: dict[str, np.ndarray]
    seconds: dict[str, np.ndarray]
    readings: list[Reading]
    completions: list[Completion]
    failures: list[RewardFailure] = field(default_factory=list)


class Watch:
    """Told before each call its first row, its reward and how many rows it is for, so that a parent can end one that
    hangs.
    """

    def begin(self, row: int, reward: int, size: int = 1) -> None: ...

    def end(self) -> None: ...


def grade(
    rewards: Sequence[Reward],
    rows: Sequence[Mapping[str, Any]],
    *,
    plain: bool = False,
    skip: Mapping[tuple[int, str], RewardFailure] | None = None,
    off: Collection[str] = (),
    alone: Collection[str] = (),
    watch: Watch | None = None,
) -> Graded:
    """Score `rows` with every reward.

    Args:
        rows: mappings with `row`, `step`, `prompt`, `completion` and whatever columns the rewards want.
        plain: completions are plain text, not JSON objects.
        skip: calls known to hang, with what to record for them.
        off: rewards switched off (they hung too often); their rows get `not_run`.
        alone: rewards to call row by row, because a call for several rows hung.
        watch: told before and after each call.
    """
    watch = watch or Watch()
    skip = skip or {}
    read = plain_completion if plain else read_completion
    completions = [read(row["completion"]) for row in rows]
    graded = Graded(
        np.fromiter((r["row"] for r in rows), np.int64, len(rows)), {}, {}, [*map(reading_of, completions)], completions
    )
    for index, reward in enumerate(rewards):
        scores = np.full(len(rows), np.nan)
        seconds = np.zeros(len(rows), np.float32)
        if reward.name in off:
            graded.failures += [
                RewardFailure(r["row"], reward.name, "not_run", "switched off: hung too often") for r in rows
            ]
        elif reward.style == "row":
            _grade_rows(reward, index, rows, completions, scores, seconds, watch, skip, graded.failures)
        else:
            one_by_one = reward.name in alone
            _grade_steps(reward, index, rows, scores, seconds, watch, skip, graded.failures, one_by_one=one_by_one)
        graded.scores[reward.name], graded.seconds[reward.name] = scores, seconds
    return graded


def _grade_rows(
    reward: Reward,
    index: int,
    rows: Sequence[Mapping[str, Any]],
    completions: Sequence[Completion],
    scores: np.ndarray,
    seconds: np.ndarray,
    watch: Watch,
    skip: Mapping[tuple[int, str], RewardFailure],
    failures: list[RewardFailure],
) -> None:
    call = reward.call
    begun = perf_counter()
    for i, row in enumerate(rows):
        if skip and (row["row"], reward.name) in skip:
            failures.append(skip[row["row"], reward.name])
            continue
        watch.begin(row["row"], index)
        try:
            score = call(completions[i], row)
        except Exception as error:
            failures.append(_exception(row["row"], reward.name, error))
            score = None
        ended = perf_counter()
        seconds[i] = ended - begun
        begun = ended
        if score is not None:
            scores[i] = score
    watch.end()


def _grade_steps(
    reward: Reward,
    index: int,
    rows: Sequence[Mapping[str, Any]],
    scores: np.ndarray,
    seconds: np.ndarray,
    watch: Watch,
    skip: Mapping[tuple[int, str], RewardFailure],
    failures: list[RewardFailure],
    *,
    one_by_one: bool,
) -> None:
    """As TRL does it, a step's rows in one call; only when that raises, row by row, to find the rows at fault."""
    order = [i for i in range(len(rows)) if (rows[i]["row"], reward.name) not in skip]
    failures += [skip[key] for row in rows if (key := (row["row"], reward.name)) in skip]
    for _, members in groupby(order, key=lambda i: rows[i]["step"]):
        step_rows = list(members)
        batches = [[i] for i in step_rows] if one_by_one else [step_rows]
        for batch in batches:
            if _call_batch(reward, index, rows, batch, scores, seconds, watch, failures, last=len(batch) == 1):
                continue
            for i in batch:
                _call_batch(reward, index, rows, [i], scores, seconds, watch, failures, last=True)
    watch.end()


def _call_batch(
    reward: Reward,
    index: int,
    rows: Sequence[Mapping[str, Any]],
    batch: list[int],
    scores: np.ndarray,
    seconds: np.ndarray,
    watch: Watch,
    failures: list[RewardFailure],
    *,
    last: bool,
) -> bool:
    """One call for the rows of `batch`; whether it succeeded (or its failure was recorded, when `last`)."""
    watch.begin(rows[batch[0]]["row"], index, len(batch))
    begun = perf_counter()
    try:
        values = call_trl(reward.call, [rows[i] for i in batch])
        if len(values) != len(batch):
            raise ValueError(f"returned {len(values)} scores for {len(batch)} completions")
    except Exception as error:
        if last:
            failures.append(_exception(rows[batch[0]]["row"], reward.name, error))
        return last
    finally:
        seconds[batch] = (perf_counter() - begun) / len(batch)
    for i, value in zip(batch, values, strict=True):
        score, problem = _number(value)
        scores[i] = score
        if problem:
            failures.append(RewardFailure(rows[i]["row"], reward.name, "value", problem))
    return True


def call_trl(function: Callable[..., Any], rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Call a function with TRL's signature: prompts and completions (messages where the log had them), every column
    as a list.
    """
    messages = [orjson.loads(m) if (m := row.get("messages")) else None for row in rows]
    extras = [orjson.loads(e) if (e := row.get("extra")) else {} for row in rows]
    arguments: dict[str, Any] = {name: [extra.get(name) for extra in extras] for extra in extras for name in extra}
    for name in rows[0]:
        if name not in INTERNAL and not name.startswith("logged."):
            arguments[name] = [row[name] for row in rows]
    arguments["prompts"] = [m["prompt"] if m else row["prompt"] for m, row in zip(messages, rows, strict=True)]
    arguments["completions"] = [
        m["completion"] if m else row["completion"] for m, row in zip(messages, rows, strict=True)
    ]
    arguments["completion_ids"] = [None] * len(rows)
    arguments["trainer_state"] = SimpleNamespace(global_step=rows[0]["step"])
    arguments["log_extra"] = arguments["log_metric"] = lambda *_: None
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        accepted = {p.name for p in parameters}
        arguments = {name: value for name, value in arguments.items() if name in accepted}
    result = function(**arguments)
    if inspect.isawaitable(result):

        async def wait() -> Any:
            return await result

        result = asyncio.run(wait())
    return list(result)


def _number(value: Any) -> tuple[float, str | None]:
    if value is None:
        return math.nan, None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan, f"returned a {type(value).__name__} instead of a number"
    if math.isinf(number):
        return math.nan, f"returned {number}"
    return number, None


def _exception(row: int, reward: str, error: Exception) -> RewardFailure:
    return RewardFailure(row, reward, "exception", f"{type(error).__name__}: {error}"[:500])
