"""A rollout log as spans: one trace per step, one span per completion, one child per reward.

Trace and span ids follow from run, step, place in the step and reward, so that sending a step twice changes nothing
in a back end that keeps one span per id. Attribute names: `docs/rollouts.md`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from observer_core.rewards.completion import Reading
from observer_core.rewards.grade import Graded
from observer_core.rewards.registry import Reward
from observer_core.rollouts import wire
from observer_core.rollouts.columns import LOGGED
from observer_core.rollouts.signatures import hack_signature

SCOPE = "observer.rollouts"
Attributes = dict[str, wire.Value | None]


@dataclass(slots=True)
class Scored:
    """One completion with everything a span says of it. `scores` are graded again where that was possible, else as
    logged.
    """

    row: Mapping[str, Any]
    reading: Reading
    scores: dict[str, float | None]
    seconds: dict[str, float]
    errors: dict[str, str]


@dataclass(frozen=True, slots=True)
class RewardFacts:
    """What every span of a reward says: weight in the total, revision of its code, range."""

    weight: float = 1.0
    revision: str | None = None
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class Span:
    """A span before it is encoded: also what the store keeps."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes | None
    kind: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str | None = None

    def encode(self) -> bytes:
        attributes = wire.attributes(self.attributes)
        return wire.span(
            self.trace_id, self.span_id, self.parent_id, self.name, self.start_ns, self.end_ns, attributes, self.error
        )


@dataclass(slots=True)
class SpanBuilder:
    """Builds a step's spans.

    Args:
        run: the run's name.
        facts: per reward; a reward that is not in it has weight 1.
    """

    run: str
    facts: Mapping[str, RewardFacts] = field(default_factory=dict)
    _begun: dict[int, int] = field(default_factory=dict)

    def step(self, step: int, scored: Sequence[Scored], now_ns: int) -> list[Span]:
        """The step's trace: 1 + completions × (1 + rewards) spans, times from `now_ns` on.

        A step that comes in several pieces has its root in the first one; the others add completions to it.
        """
        trace_id = stable_id(16, "trace", self.run, step)
        root_id = stable_id(8, "step", self.run, step)
        offset = self._begun.get(step, 0)
        self._begun[step] = offset + len(scored)
        spans: list[Span] = []
        cursor = now_ns
        for place, item in enumerate(scored, offset):
            cursor = self._completion(spans, trace_id, root_id, step, place, item, cursor)
        if offset == 0:
            attributes = self._root_attributes(step, scored)
            root = Span(trace_id, root_id, None, "step", f"training step {step}", now_ns, cursor, attributes)
            spans.insert(0, root)
        return spans

    def _root_attributes(self, step: int, scored: Sequence[Scored]) -> Attributes:
        out: Attributes = {
            "openinference.span.kind": "CHAIN",
            "session.id": self.run,
            "training.run": self.run,
            "training.step": step,
            "training.completions": len(scored),
            "training.prompts": len({item.row["prompt"] for item in scored}),
            "training.parse_failures": sum(not item.reading.parsed for item in scored),
            **_flat_groups(scored),
        }
        for name in scored[0].scores if scored else ():
            values = [s for item in scored if (s := item.scores[name]) is not None]
            if values:
                out[f"reward.{name}.mean"] = float(np.mean(values))
                out[f"reward.{name}.std"] = float(np.std(values))
        return out

    def _completion(
        self, spans: list[Span], trace_id: bytes, root_id: bytes, step: int, place: int, item: Scored, start: int
    ) -> int:
        row, reading = item.row, item.reading
        span_id = stable_id(8, "completion", self.run, step, place)
        citations = row.get("citations")
        attributes: Attributes = {
            "openinference.span.kind": "LLM",
            "training.run": self.run,
            "training.step": step,
            "completion.index": place,
            "completion.row": row["row"],
            "task.id": row.get("task_id"),
            "group.id": row.get("group_id"),
            "grpo.advantage": row.get("advantage"),
            "completion.confidence": reading.confidence,
            "completion.cited": reading.cited,
            "completion.length": len(row["completion"]),
            "completion.truncated": row.get("truncated"),
            "completion.parse_error": reading.kind,
            "completion.parse_error.at": reading.at or None,
            "hack.signature": hack_signature(
                reading, item.scores, row.get("advantage"), None if citations is None else len(citations)
            ),
            **{f"reward.{name}.score": score for name, score in item.scores.items()},
            "input.value": row["prompt"],
            "output.value": row["completion"],
        }
        cursor = start
        children = []
        for name, score in item.scores.items():
            end = cursor + max(1000, int(item.seconds.get(name, 0.0) * 1e9))
            children.append(self._reward(trace_id, span_id, step, place, item, name, score, cursor, end))
            cursor = end
        failed = None if reading.parsed else f"cannot be read: {reading}"
        spans.append(Span(trace_id, span_id, root_id, "completion", "completion", start, cursor, attributes, failed))
        spans += children
        return cursor

    def _reward(
        self,
        trace_id: bytes,
        parent_id: bytes,
        step: int,
        place: int,
        item: Scored,
        name: str,
        score: float | None,
        start: int,
        end: int,
    ) -> Span:
        facts = self.facts.get(name, RewardFacts())
        failure = item.errors.get(name)
        attributes: Attributes = {
            "openinference.span.kind": "EVALUATOR",
            "training.run": self.run,
            "training.step": step,
            "task.id": item.row.get("task_id"),
            "reward.name": name,
            "reward.score": score,
            "reward.logged_score": item.row.get(LOGGED + name),
            "reward.weight": facts.weight,
            "reward.low": facts.low,
            "reward.high": facts.high,
            "observer.reward.revision": facts.revision,
            "reward.error": failure,
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": score,
            "error.type": failure.partition(":")[0] if failure else None,
        }
        span_id = stable_id(8, "reward", self.run, step, place, name)
        return Span(trace_id, span_id, parent_id, "reward", f"reward {name}", start, end, attributes, failure)


def reward_facts(rewards: Iterable[Reward], weights: Mapping[str, float] | None = None) -> dict[str, RewardFacts]:
    """The facts of rewards that were found; `weights` as given by the run."""
    weights = weights or {}
    facts = {r.name: RewardFacts(weights.get(r.name, 1.0), r.revision(), r.low, r.high) for r in rewards}
    return facts | {name: RewardFacts(weight) for name, weight in weights.items() if name not in facts}


def scored_steps(
    graded: Iterable[tuple[pa.RecordBatch, Graded]], logged: Sequence[str]
) -> Iterator[tuple[int, list[Scored]]]:
    """Completions by step, in the log's order. A reward that was not graded again has its logged score."""
    for step, rows in groupby(_scored(graded, logged), key=lambda item: item.row["step"]):
        yield step, list(rows)


def _scored(graded: Iterable[tuple[pa.RecordBatch, Graded]], logged: Sequence[str]) -> Iterator[Scored]:
    for batch, result in graded:
        errors: dict[int, dict[str, str]] = {}
        for failure in result.failures:
            errors.setdefault(failure.row, {})[failure.reward] = f"{failure.kind}: {failure.message}"
        scores = {name: values.tolist() for name, values in result.scores.items()}
        seconds = {name: values.tolist() for name, values in result.seconds.items()}
        only_logged = [name for name in logged if name not in scores]
        for i, row in enumerate(batch.to_pylist()):
            own = {name: row[LOGGED + name] for name in only_logged}
            for name, values in scores.items():
                own[name] = None if values[i] != values[i] else values[i]
            times = {name: values[i] for name, values in seconds.items()}
            yield Scored(row, result.readings[i], own, times, errors.get(row["row"], {}))


def _flat_groups(scored: Sequence[Scored]) -> Attributes:
    """How many groups (by group id, else by prompt) have at least two completions, and in how many of them all have
    the same total reward, up to float32's rounding: no advantage, no gradient.
    """
    if not scored or not scored[0].scores:
        return {}
    totals: dict[str, list[float]] = {}
    for item in scored:
        group = item.row.get("group_id") or item.row["prompt"]
        totals.setdefault(group, []).append(sum(score for score in item.scores.values() if score is not None))
    groups = [total for total in totals.values() if len(total) > 1]
    flat = sum(max(total) - min(total) <= 1e-6 * max(1.0, abs(total[0])) for total in groups)
    return {"training.groups": len(groups), "training.flat_groups": flat}


def stable_id(size: int, *parts: object) -> bytes:
    """`size` bytes that follow from the parts: the same span has the same id whenever it is made."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size, person=b"observer").digest()
