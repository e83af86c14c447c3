"""Evaluators: the rewards of `observer_core.rewards` run on live traces, beside the scorer.

User code may raise, hang or crash: it runs in a process of its own, under a timeout, and is counted and named. Where
only built-in rewards are asked for, no process is needed.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from observer_core.errors import ObserverError
from observer_serving.candidate import Candidate
from observer_serving.config import EvaluatorsSettings
from observer_serving.metrics import Metrics

if TYPE_CHECKING:
    from observer_core.rewards.grade import Graded
    from observer_core.rewards.pool import RewardPool

log = logging.getLogger(__name__)

MAX_WAITING = 1024
"""Traces that wait for their evaluators; what comes while so many wait goes without, and is counted."""
_MAX_BATCH = 16
_STOP_WAIT_S = 2.0

Values = dict[str, float | None]
"""Evaluator → its value; `None` where it failed, absent where it does not apply."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What the evaluators say of one trace."""

    trace_id: str
    values: Values


class Evaluators:
    """All evaluators on one thread (and one process beside it).

    Args:
        on_evaluated: called on the thread with every finished batch.

    Raises:
        InputError: a reward that does not exist, or a module that cannot be imported.
    """

    def __init__(
        self, settings: EvaluatorsSettings, on_evaluated: Callable[[list[Evaluated]], None], metrics: Metrics
    ) -> None:
        self.deadline = settings.deadline
        self._settings = settings
        from observer_core.rewards import find_rewards  # here: most services have no evaluators

        self._rewards = find_rewards(f"{name}={spec}" for name, spec in settings.rewards.items())
        self._on_evaluated = on_evaluated
        self._metrics = metrics
        self._pool: RewardPool | None = None
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._lock = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="observer-evaluators", daemon=True)

    @property
    def names(self) -> list[str]:
        return [reward.name for reward in self._rewards]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Drop what waits and end the process."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_WAIT_S)

    def submit(self, candidate: Candidate) -> bool:
        """Evaluate a candidate soon; whether it will be."""
        if candidate.trace is None:
            return False
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                self._count_all("skipped", 1)
                return False
            self._waiting.append((candidate.trace_id, self._row(candidate)))
            self._lock.notify()
        return True

    def run_once(self) -> bool:
        """Evaluate one batch if anything waits."""
        with self._lock:
            if not self._waiting:
                return False
            taken = [self._waiting.popleft() for _ in range(min(_MAX_BATCH, len(self._waiting)))]
        rows = [row | {"row": number, "step": 0} for number, (_, row) in enumerate(taken)]
        try:
            graded = self._grade(rows)
        except Exception as error:
            log.error("evaluators gave nothing for %d traces: %s", len(taken), error)
            self._count_all("crash", len(taken))
            values: list[Values] = [dict.fromkeys(self.names) for _ in taken]
        else:
            values = self._values(graded, [trace_id for trace_id, _ in taken])
        self._on_evaluated([Evaluated(trace_id, each) for (trace_id, _), each in zip(taken, values, strict=True)])
        return True

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        """A trace as a row that rewards read: built-in ones the columns, TRL's signature everything."""
        trace, facts = candidate.trace, candidate.facts
        assert trace is not None
        given: dict[str, Any] = {
            "trace_id": candidate.trace_id,
            "project": facts.project,
            "evidence": trace.evidence,
            "tool_calls": [call.to_json() for call in trace.tool_calls],
            "reference": trace.gold_answer,
        }
        for column, name in self._settings.columns.items():
            values = list(facts.attributes.get(name, ()))
            given[column] = trace.extra.get(name, values[0] if values else None)
        reference, citations = given.pop("reference", None), given.pop("citations", None)
        return {
            "prompt": trace.question,
            "completion": trace.final_answer,
            "reference": None if reference is None else str(reference),
            "citations": [str(item) for item in citations] if isinstance(citations, list) else None,
            "extra": _json(given),
        }

    def _grade(self, rows: list[dict[str, Any]]) -> "Graded":
        plain = self._settings.answers == "text"
        if all(reward.builtin for reward in self._rewards):
            from observer_core.rewards.grade import grade

            return grade(self._rewards, rows, plain=plain)
        import pyarrow as pa

        if self._pool is None:
            from observer_core.rewards.pool import RewardPool

            self._pool = RewardPool(self._rewards, workers=1, timeout=self._settings.timeout, plain=plain)
        texts = dict.fromkeys(("prompt", "completion", "reference", "extra"), pa.string())
        schema = pa.schema({"row": pa.int64(), "step": pa.int64(), **texts, "citations": pa.list_(pa.string())})
        try:
            ((_, graded),) = self._pool.grade([pa.RecordBatch.from_pylist(rows, schema=schema)])
        except ObserverError:  # the process died; the next batch gets a new one
            self._pool.__exit__()
            self._pool = None
            raise
        return graded

    def _values(self, graded: "Graded", trace_ids: Sequence[str]) -> list[Values]:
        failed = {(failure.row, failure.reward) for failure in graded.failures}
        for failure in graded.failures:
            self._metrics.evaluator_failures.labels(failure.reward, failure.kind).inc()
            log.warning(
                "evaluator %s failed on trace %s: %s: %s",
                failure.reward, trace_ids[failure.row], failure.kind, failure.message,
            )  # fmt: skip
        return [
            {
                name: None if (number, name) in failed else float(scores[number])
                for name, scores in graded.scores.items()
                if (number, name) in failed or not np.isnan(scores[number])
            }
            for number in range(len(trace_ids))
        ]

    def _count_all(self, kind: str, traces: int) -> None:
        for name in self.names:
            self._metrics.evaluator_failures.labels(name, kind).inc(traces)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._stopping:
                    self._lock.wait()
                if self._stopping:
                    break
            self.run_once()
        if self._pool is not None:
            self._pool.__exit__()


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # a number beyond 64 bits, half a surrogate pair, deep nesting
        return json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace").decode()
