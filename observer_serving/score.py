"""Scoring on one thread: batches of whatever waits, with a deadline; the model can be switched between batches."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from observer_core.decision.protocol import Score, Scorer
from observer_core.policy import Unscored
from observer_serving.candidate import Candidate
from observer_serving.clock import Clock
from observer_serving.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with its score, or with the reason why it has none; `model` names the scorer that was in force."""

    candidate: Candidate
    score: Score | None
    failure: Unscored | None
    model: str
    model_version: str


@dataclass(slots=True, eq=False)
class _Batch:
    candidates: list[Candidate]
    started_at: float


class ScoringThread:
    """Scores candidates in the order of their completion.

    A candidate without a score `deadline` seconds after its completion is given up: `overload` when it never got
    its turn, `scorer_failed` when the scorer hangs, raises or answers nonsense.

    Args:
        on_scored: called on the scoring thread with every finished batch.
    """

    def __init__(
        self,
        scorer: Scorer,
        on_scored: Callable[[list[Scored]], None],
        clock: Clock,
        metrics: Metrics,
        *,
        deadline: float = 30.0,
        max_batch: int = 32,
    ) -> None:
        self._scorer = scorer
        self._on_scored = on_scored
        self._clock = clock
        self._metrics = metrics
        self._deadline = deadline
        self._max_batch = max_batch
        self._waiting: deque[Candidate] = deque()
        self._running: _Batch | None = None
        self._lock = threading.Condition()
        self._scorer_lock = threading.Lock()  # scorers take one call at a time
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="observer-scorer", daemon=True)

    @property
    def scorer(self) -> Scorer:
        """The scorer in force."""
        return self._scorer

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def use(self, scorer: Scorer) -> None:
        """Score with `scorer` from the next batch on."""
        self._scorer = scorer

    def stalled(self) -> bool:
        """Whether the scorer has been at one batch for longer than the deadline."""
        running = self._running
        return running is not None and running.started_at + self._deadline <= self._clock.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no further batch; one that runs is waited for a second at most (a model cannot be interrupted)."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def submit(self, candidate: Candidate) -> None:
        with self._lock:
            self._waiting.append(candidate)
            self._lock.notify()

    def next_deadline(self) -> float | None:
        """When `expire` may next have something."""
        with self._lock:
            heads = [self._waiting[0]] if self._waiting else []
            if self._running is not None and self._running.candidates:
                heads.append(self._running.candidates[0])
            return min((head.completed_at for head in heads), default=math.inf) + self._deadline if heads else None

    def expire(self, now: float) -> list[Scored]:
        """Give up what is over its deadline."""
        given_up: list[Candidate] = []
        with self._lock:
            running = self._running
            hangs = running is not None and running.started_at + self._deadline <= now
            why: Unscored = "scorer_failed" if hangs else "overload"
            if running is not None and hangs:
                given_up += running.candidates
                running.candidates = []  # its answers, should they come, find nobody
            while self._waiting and self._waiting[0].completed_at + self._deadline <= now:
                given_up.append(self._waiting.popleft())
        self._metrics.scorer_failures.labels(why).inc(len(given_up))
        return [self._unscored(candidate, why) for candidate in given_up]

    def score_now(self, candidate: Candidate) -> Scored:
        """Score one candidate on the calling thread (for `POST /v1/traces:score`)."""
        if not self._scorer_lock.acquire(timeout=self._deadline):
            return self._unscored(candidate, "overload")
        try:
            return self._score_batch([candidate])[0]
        finally:
            self._scorer_lock.release()

    def run_once(self) -> bool:
        """Score one batch if anything waits."""
        with self._lock:
            if not self._waiting:
                return False
            taken = [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]
            batch = self._running = _Batch(taken, self._clock.monotonic())
        started = time.perf_counter()
        with self._scorer_lock:
            scored = self._score_batch(taken)
        self._metrics.score_seconds.observe(time.perf_counter() - started)
        with self._lock:
            still_wanted = bool(batch.candidates)
            self._running = None
        if still_wanted:
            self._on_scored(scored)
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._stopping:
                    self._lock.wait()
                if self._stopping:
                    return
            self.run_once()

    def _score_batch(self, candidates: list[Candidate]) -> list[Scored]:
        scorer = self._scorer
        scores: Sequence[Score | None]
        try:
            scores = _checked(scorer.score([c.trace for c in candidates if c.trace is not None]), len(candidates))
        except Exception:
            if len(candidates) > 1:  # one bad trace must not take its neighbours' scores
                return [scored for candidate in candidates for scored in self._score_batch([candidate])]
            log.exception("scorer %s failed on trace %s", scorer.model, candidates[0].trace_id)
            self._metrics.scorer_failures.labels("scorer_failed").inc()
            scores = [None]
        return [
            Scored(candidate, score, None if score is not None else "scorer_failed", scorer.model, scorer.model_version)
            for candidate, score in zip(candidates, scores, strict=True)
        ]

    def _unscored(self, candidate: Candidate, failure: Unscored) -> Scored:
        return Scored(candidate, None, failure, self._scorer.model, self._scorer.model_version)

    def unreadable(self, candidate: Candidate) -> Scored:
        """A candidate that no scorer can read."""
        return self._unscored(candidate, "scorer_failed")


def _checked(scores: Sequence[Score], expected: int) -> Sequence[Score]:
    if len(scores) != expected:
        raise ValueError(f"{len(scores)} scores for {expected} traces")
    for score in scores:
        if not (0.0 <= score.p_wrong <= 1.0 and 0.0 <= score.p_wrong_raw <= 1.0):  # also refuses NaN
            raise ValueError(f"{score.p_wrong_raw} → {score.p_wrong} is not a probability")
    return scores
