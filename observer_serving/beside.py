"""What is known of a trace beside its score when it is decided: evaluators, which a decision waits for until their
deadline, and shadow scores, which it takes if they are there and never waits for.

Pure bookkeeping on the engine's thread; what comes after the decision is handed back as late.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from observer_serving.candidate import Candidate
from observer_serving.clock import Clock
from observer_serving.evaluate import Evaluated, Evaluators, Values
from observer_serving.metrics import Metrics
from observer_serving.score import Scored, ShadowScore


@dataclass(slots=True)
class _Open:
    candidate: Candidate
    values: Values | None
    scored: Scored | None = None
    shadow: dict[str, Any] = field(default_factory=dict)


class Beside:
    """Joins scores with evaluators and shadows.

    Args:
        evaluators: `None` when none are configured: then nothing waits.
    """

    def __init__(self, evaluators: Evaluators | None, clock: Clock, metrics: Metrics) -> None:
        self._evaluators = evaluators
        self._clock = clock
        self._metrics = metrics
        self._open: dict[str, _Open] = {}
        self._waits: OrderedDict[str, float] = OrderedDict()  # whose values are not there → since when, oldest first
        self.late: deque[ShadowScore] = deque()
        """Shadow scores of traces that were decided before they came."""

    def submit(self, candidate: Candidate) -> None:
        """A candidate is on its way to its score."""
        values: Values | None = {}
        if self._evaluators is not None:
            values = dict.fromkeys(self._evaluators.names)
            if self._evaluators.submit(candidate):
                values = None
                self._waits[candidate.trace_id] = self._clock.monotonic()
        self._open[candidate.trace_id] = _Open(candidate, values)

    def scored(self, batch: Sequence[Scored]) -> list[Scored]:
        """Scores came; returns those that can be decided now."""
        ready: list[Scored] = []
        for scored in batch:
            one = self._open.get(scored.candidate.trace_id)
            if one is not None and one.candidate is scored.candidate:
                one.scored = scored
                ready += self._if_ready(scored.candidate.trace_id, one)
        return ready

    def heard(self, batch: Sequence[Scored] | Sequence[Evaluated]) -> list[Scored]:
        """Scores or values came; returns the traces that can be decided now."""
        scored = [one for one in batch if isinstance(one, Scored)]
        return self.scored(scored) + self.evaluated([one for one in batch if isinstance(one, Evaluated)])

    def forget(self, trace_id: str) -> None:
        """Nobody here decides the trace any more; what still comes for it is passed over."""
        self._open.pop(trace_id, None)
        self._waits.pop(trace_id, None)

    def evaluated(self, batch: Sequence[Evaluated]) -> list[Scored]:
        """Values came; returns the traces that can be decided now."""
        ready: list[Scored] = []
        for evaluated in batch:
            if self._waits.pop(evaluated.trace_id, None) is not None:
                one = self._open[evaluated.trace_id]
                one.values = evaluated.values
                ready += self._if_ready(evaluated.trace_id, one)
        return ready

    def shadowed(self, score: ShadowScore) -> None:
        """A shadow score came: in time for the decision, or late."""
        one = self._open.get(score.trace_id)
        if one is None:
            self.late.append(score)
        else:
            one.shadow[score.name] = score.record

    def expire(self, now: float) -> list[Scored]:
        """Stop waiting for evaluators that are over their deadline; returns what can be decided without them."""
        ready: list[Scored] = []
        while self._evaluators is not None and self._waits:
            trace_id, since = next(iter(self._waits.items()))
            if since + self._evaluators.deadline > now:
                break
            del self._waits[trace_id]
            one = self._open[trace_id]
            one.values = dict.fromkeys(self._evaluators.names)
            for name in self._evaluators.names:
                self._metrics.evaluator_failures.labels(name, "late").inc()
            ready += self._if_ready(trace_id, one)
        return ready

    def next_deadline(self) -> float | None:
        """When `expire` may next have something."""
        if self._evaluators is None or not self._waits:
            return None
        return next(iter(self._waits.values())) + self._evaluators.deadline

    def _if_ready(self, trace_id: str, one: _Open) -> list[Scored]:
        if one.scored is None or one.values is None:
            return []
        del self._open[trace_id]
        return [replace(one.scored, evaluators=one.values, shadow=one.shadow)]
