"""One model thread: whatever waits is computed together, up to a budget of tokens."""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from observer_core.decision.protocol import DecisionModel, Plan, Reading
from observer_core.errors import ObserverError
from observer_serving.systemone.metrics import Metrics

log = logging.getLogger(__name__)

RETRY_AFTER_S = (1.0, 30.0)
"""Bounds of the advice when to come back; clients give up on longer waits."""
_SMOOTHING = 0.2


@dataclass(slots=True, eq=False)
class _Job:
    plan: Plan
    reading: asyncio.Future[Reading]


class ModelThread:
    """Runs plans in the order of their arrival, as many at once as the token budget holds.

    There is no waiting for a batch to fill: while the model computes one, the next gathers by itself.

    Args:
        batch_tokens: budget of a batch, by `Plan.cost`; a plan above it is a batch of its own.
    """

    def __init__(self, model: DecisionModel, metrics: Metrics, *, batch_tokens: int) -> None:
        self._model, self._metrics, self._batch_tokens = model, metrics, batch_tokens
        self._waiting: deque[_Job] = deque()
        self._backlog = 0
        self._seconds_per_token = 0.0
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="observer-systemone-model", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def backlog(self) -> int:
        """Tokens of what waits or is being computed."""
        return self._backlog

    def start(self) -> None:
        """Begin; called on the event loop that `run` is called on."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Compute what waits, then end; a model that hangs is left behind after `timeout` seconds."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    async def run(self, plan: Plan) -> Reading:
        """The reading of one plan. Cancelled while it waits, it is never computed.

        Raises:
            Exception: what the model raised for this plan, on its own.
        """
        job = _Job(plan, self._loop.create_future())
        with self._wake:
            self._waiting.append(job)
            self._backlog += plan.cost
            self._wake.notify()
        try:
            return await job.reading
        except asyncio.CancelledError:
            self._forget(job)
            raise

    def retry_after(self) -> float:
        """Seconds after which what waits now should be done."""
        low, high = RETRY_AFTER_S
        return min(max(low, self._backlog * self._seconds_per_token), high)

    def _forget(self, job: _Job) -> None:
        with self._wake, contextlib.suppress(ValueError):  # it is being computed already
            self._waiting.remove(job)
            self._backlog -= job.plan.cost

    def _work(self) -> None:
        while batch := self._take():
            started = time.perf_counter()
            outcomes = self._compute([job.plan for job in batch])
            seconds = time.perf_counter() - started
            self._metrics.batch_seconds.observe(seconds)
            self._metrics.batch_requests.observe(len(batch))
            cost = sum(job.plan.cost for job in batch)
            with self._wake:
                self._backlog -= cost
                speed = seconds / max(1, cost)
                self._seconds_per_token += _SMOOTHING * (speed - self._seconds_per_token)
            # A closed loop has nobody waiting: the shutdown did not wait for this batch.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_deliver, batch, outcomes)

    def _take(self) -> list[_Job]:
        """The next batch; empty at the end."""
        with self._wake:
            while not self._waiting and not self._stopping:
                self._wake.wait()
            batch: list[_Job] = []
            cost = 0
            while self._waiting:
                cost += self._waiting[0].plan.cost
                if batch and cost > self._batch_tokens:
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _compute(self, plans: Sequence[Plan]) -> list[Reading | Exception]:
        try:
            return [_checked(plan, reading) for plan, reading in zip(plans, self._model.run(plans), strict=True)]
        except Exception as error:
            if len(plans) == 1:
                return [error]
            log.warning("a batch of %d requests failed (%s); each is tried alone", len(plans), error)
            return [outcome for plan in plans for outcome in self._compute([plan])]


def _checked(plan: Plan, reading: Reading) -> Reading:
    if reading.answers.keys() != plan.questions.keys():
        raise ObserverError("the decision model did not answer the questions asked; load another run")
    for answer in reading.answers.values():
        total = sum(answer.probabilities.values())
        if not (math.isfinite(total) and abs(total - 1) < 0.01 and min(answer.probabilities.values()) >= 0):
            raise ObserverError("the decision model gave what is no distribution; train it anew or load another run")
    return reading


def _deliver(batch: Sequence[_Job], outcomes: Sequence[Reading | Exception]) -> None:
    for job, outcome in zip(batch, outcomes, strict=True):
        if job.reading.cancelled():
            continue
        if isinstance(outcome, Exception):
            job.reading.set_exception(outcome)
        else:
            job.reading.set_result(outcome)
