"""Who scores which trace: one route per project with a scorer of its own, the service's route for all others.

A route is one lane, or two in a cascade: the second, stronger one is asked only about traces the first is uncertain of,
waits in a lane of its own and never holds up the others. If it gives no score in time, the first one's stands. Each
route's shadows get a copy and are never waited for.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from observer_core.decision.protocol import Score
from observer_core.errors import ObserverError
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
    """The routes of all scopes, as the engine and the API see them. Until `begin` has brought the models, what is
    submitted waits for them, without a deadline: whoever takes spans in looks at how much waits.

    Args:
        models: scope → its model, the service's scope always among them; none while they are being loaded.
        on_event: called on a scoring thread with finished batches and with shadow scores.
        patience: seconds that a caller waits for a score while the models, which would say, are being loaded.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        on_event: OnEvent,
        clock: Clock,
        metrics: Metrics,
        *,
        patience: float = 0.0,
    ) -> None:
        self._make_route = lambda model: Route(model, on_event, clock, metrics)
        self._on_event = on_event
        self._patience = patience
        self._routes = {scope: self._make_route(model) for scope, model in models.items()}
        self._early: list[Candidate] = []
        self._started = False
        self._lock = threading.Lock()

    @property
    def loading(self) -> bool:
        """Whether the models have not come yet."""
        return not self._routes

    def begin(self, models: Mapping[str, LoadedModel]) -> None:
        """Score by these models from now on, first what has waited for them."""
        routes = {scope: self._make_route(model) for scope, model in models.items()}
        with self._lock:
            self._routes = routes
            if self._started:
                self._start_routes()
            for candidate in self._early:
                self._hand_on(candidate)
            self._early.clear()
        self._on_event([])  # whoever waits for events learns of the deadlines

    def route(self, scope: str = SERVICE) -> Route:
        """The route of a project, the service's where it has none of its own.

        Raises:
            ObserverError: the models are still being loaded.
        """
        if self.loading:
            raise ObserverError("the model is still loading; try again in a moment")
        return self._routes.get(scope) or self._routes[SERVICE]

    def deadline(self, scope: str = SERVICE) -> float:
        """The longest that a caller waits for a score."""
        return self._patience if self.loading else self.route(scope).deadline

    @property
    def waiting(self) -> int:
        return len(self._early) + sum(lane.waiting for route in self._routes.values() for lane in route.lanes)

    def stalled(self) -> list[str]:
        """The models that have been at one batch for longer than their deadline."""
        lanes = [lane for route in self._routes.values() for lane in route.lanes]
        return [lane.scorer.model for lane in lanes if lane.stalled()]

    def start(self) -> None:
        with self._lock:
            self._started = True
            self._start_routes()

    def stop(self) -> None:
        for route in self._routes.values():
            route.stop()

    def submit(self, candidate: Candidate) -> None:
        """Score a candidate; one that no scorer can read comes back without a score."""
        with self._lock:
            if self.loading:
                self._early.append(candidate)
                return
        self._hand_on(candidate)

    def expire(self, now: float) -> list[Scored]:
        return [scored for route in self._routes.values() for scored in route.expire(now)]

    def next_deadline(self) -> float | None:
        return earliest([lane.next_deadline() for route in self._routes.values() for lane in route.lanes])

    def run_once(self) -> bool:
        """Score one batch of every lane and shadow on the calling thread; whether there was any."""
        parts = [part for route in self._routes.values() for part in (*route.lanes, *route.shadows)]
        return sum(part.run_once() for part in parts) > 0

    def _start_routes(self) -> None:
        for route in self._routes.values():
            route.start()

    def _hand_on(self, candidate: Candidate) -> None:
        route = self.route(candidate.facts.project)
        if candidate.trace is None:
            self._on_event([route.lanes[0].unscored(candidate, "scorer_failed")])
        else:
            route.submit(candidate)
