"""Who scores which trace: one route per project with a scorer of its own, the service's route for all others.

A route is one lane, or two in a cascade: the second, stronger one is asked only about traces the first is uncertain of,
waits in a lane of its own and never holds up the others. If it gives no score in time, the first one's stands. Each
route's shadows get a copy and are never waited for.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from observer_core.decision.protocol import Score
from observer_serving.candidate import Candidate
from observer_serving.clock import Clock
from observer_serving.config import SERVICE
from observer_serving.metrics import Metrics
from observer_serving.score.lane import Lane, Scored, earliest
from observer_serving.score.models import LoadedModel
from observer_serving.score.shadow import Shadow, ShadowScore

OnEvent = Callable[[list[Scored] | ShadowScore], None]


class Route:
    """How the traces of one scope are scored."""

    def __init__(self, model: LoadedModel, on_event: OnEvent, clock: Clock, metrics: Metrics) -> None:
        self.model = model
        self._on_event = on_event
        self._metrics = metrics
        self._first = Lane(model.first, lambda scored: self._deliver(self._sifted(scored)), clock, metrics)
        self._second = Lane(
            model.second or model.first, lambda scored: self._deliver(self._merged(scored)), clock, metrics
        )
        self._uncertain: dict[str, Scored] = {}  # trace id → what the first lane said, while the second one works
        self._shadows = self._make_shadows(model)
        self._started = False

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self._first, self._second

    @property
    def shadows(self) -> list[Shadow]:
        return self._shadows

    @property
    def deadline(self) -> float:
        """The longest a candidate waits for its score."""
        return self._first.deadline + (self._second.deadline if self.model.second else 0.0)

    def use(self, model: LoadedModel) -> None:
        """Score by `model` from the next batch on."""
        self.model = model
        self._first.use(model.first)
        if model.second is not None:
            self._second.use(model.second)
        retired, self._shadows = self._shadows, self._make_shadows(model)
        if self._started:
            for shadow in self._shadows:
                shadow.start()
        for shadow in retired:
            shadow.stop()

    def start(self) -> None:
        self._started = True
        for part in (*self.lanes, *self._shadows):
            part.start()

    def stop(self) -> None:
        for part in (*self.lanes, *self._shadows):
            part.stop()

    def submit(self, candidate: Candidate) -> None:
        self._first.submit(candidate)
        for shadow in self._shadows:
            shadow.submit(candidate)

    def expire(self, now: float) -> list[Scored]:
        """Give up what is over its deadline; what the second lane gives up keeps the first one's score."""
        return self._sifted(self._first.expire(now)) + self._merged(self._second.expire(now))

    def score_now(self, candidate: Candidate) -> Scored:
        """Score one candidate on the calling thread (for a dry run)."""
        scored = self._first.score_now(candidate)
        if not self._is_uncertain(scored):
            return self._noted(scored, None)
        return _merge(scored, self._second.score_now(candidate))

    def _make_shadows(self, model: LoadedModel) -> list[Shadow]:
        return [Shadow(name, stage, self._on_event, self._metrics) for name, stage in model.shadow.items()]

    def _deliver(self, scored: list[Scored]) -> None:
        if scored:
            self._on_event(scored)

    def _is_uncertain(self, scored: Scored) -> bool:
        """Whether the second lane is asked: the first one gave no answer, or one within the bounds."""
        if self.model.second is None or scored.failure == "overload":
            return False
        bounds = self.model.uncertain
        return scored.score is None or bounds.min <= scored.score.p_wrong <= bounds.max

    def _sifted(self, scored: list[Scored]) -> list[Scored]:
        """What the first lane decides; the uncertain go on."""
        done: list[Scored] = []
        for one in scored:
            if self._is_uncertain(one):
                self._uncertain[one.candidate.trace_id] = one
                self._second.submit(one.candidate)
            else:
                done.append(self._noted(one, None))
        return done

    def _merged(self, scored: list[Scored]) -> list[Scored]:
        return [self._noted(self._uncertain.pop(one.candidate.trace_id), one) for one in scored]

    def _noted(self, first: Scored, second: Scored | None) -> Scored:
        """The score with which stage gave it, where there are two."""
        if self.model.second is None and second is None:
            return first
        merged = _merge(first, second)
        if merged.score is not None:
            self._metrics.cascade.labels(merged.score.answers["cascade"]["stage"]).inc()
        return merged


def _merge(first: Scored, second: Scored | None) -> Scored:
    """The second stage's score where it has one, else the first one's, and under `cascade` how it came about."""
    chosen = second if second is not None and second.score is not None else first
    if chosen.score is None:
        return chosen
    note: dict[str, Any] = {"stage": "second" if chosen is second else "first"}
    if first.score is not None:
        note["first_p_wrong"] = first.score.p_wrong
    if second is not None and second.failure is not None:
        note["second_failed"] = second.failure
    return replace(chosen, score=_with_answer(chosen.score, note))


def _with_answer(score: Score, note: dict[str, Any]) -> Score:
    return replace(score, answers=score.answers | {"cascade": note})


class Scoring:
    """The routes of all scopes, as the engine and the API see them.

    Args:
        models: scope → its model; the service's scope is always among them.
        on_event: called on a scoring thread with finished batches and with shadow scores.
    """

    def __init__(self, models: Mapping[str, LoadedModel], on_event: OnEvent, clock: Clock, metrics: Metrics) -> None:
        self._routes = {scope: Route(model, on_event, clock, metrics) for scope, model in models.items()}

    def route(self, scope: str = SERVICE) -> Route:
        """The route of a project, the service's where it has none of its own."""
        return self._routes.get(scope) or self._routes[SERVICE]

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for route in self._routes.values() for lane in route.lanes)

    def stalled(self) -> list[str]:
        """The models that have been at one batch for longer than their deadline."""
        lanes = [lane for route in self._routes.values() for lane in route.lanes]
        return [lane.scorer.model for lane in lanes if lane.stalled()]

    def start(self) -> None:
        for route in self._routes.values():
            route.start()

    def stop(self) -> None:
        for route in self._routes.values():
            route.stop()

    def submit(self, candidate: Candidate) -> None:
        self.route(candidate.facts.project).submit(candidate)

    def expire(self, now: float) -> list[Scored]:
        return [scored for route in self._routes.values() for scored in route.expire(now)]

    def next_deadline(self) -> float | None:
        return earliest([lane.next_deadline() for route in self._routes.values() for lane in route.lanes])

    def unreadable(self, candidate: Candidate) -> Scored:
        """A candidate that no scorer can read."""
        return self.route(candidate.facts.project).lanes[0].unscored(candidate, "scorer_failed")

    def run_once(self) -> bool:
        """Score one batch of every lane and shadow on the calling thread; whether there was any."""
        parts = [part for route in self._routes.values() for part in (*route.lanes, *route.shadows)]
        return sum(part.run_once() for part in parts) > 0
