"""Scoring on one thread: batches of whatever waits, with a deadline; the model can be switched between batches."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from observer_core.decision.protocol import Score, Scorer
from observer_core.errors import InputError, ObserverError
from observer_core.policy import Unscored
from observer_core.traces.trace import Trace
from observer_serving.candidate import Candidate
from observer_serving.clock import Clock
from observer_serving.metrics import Metrics

log = logging.getLogger(__name__)

STOP_WAIT_S = 10.0
_CHARS_PER_TOKEN = 4  # of English text under the usual tokenizers


@dataclass(frozen=True, slots=True)
class Stage:
    """A scorer and the limits it runs under.

    Attributes:
        deadline: seconds a candidate may wait for its score.
        max_batch: traces of a batch. On a CPU larger ones gain nothing, and all of a batch wait for its last.
        max_batch_tokens: estimated tokens of a batch; a longer trace is scored alone.
        window: the most tokens the model reads of one trace.
    """

    scorer: Scorer
    deadline: float = 30.0
    max_batch: int = 8
    max_batch_tokens: int = 16_384
    window: int | None = None

    def cost(self, trace: Trace | None) -> int:
        """Tokens the scorer will read of a trace, estimated."""
        tokens = 0 if trace is None else text_size(trace) // _CHARS_PER_TOKEN
        return tokens if self.window is None else min(tokens, self.window)


def text_size(trace: Trace) -> int:
    """Characters of the texts a state is made from."""
    calls = sum(len(call.name) + len(call.result_preview or "") for call in trace.tool_calls)
    return len(trace.question) + len(trace.final_answer) + sum(map(len, trace.evidence)) + calls


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with its score, or with the reason why it has none; `model` names the scorer that was in force.

    `shadow` and `evaluators` are what else is known of it when it is decided.
    """

    candidate: Candidate
    score: Score | None
    failure: Unscored | None
    model: str
    model_version: str
    shadow: dict[str, Any] = field(default_factory=dict)
    evaluators: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Waiting:
    candidate: Candidate
    since: float


@dataclass(slots=True, eq=False)
class _Batch:
    candidates: list[Candidate]
    started_at: float


class Lane:
    """Scores candidates in the order in which they come.

    A candidate without a score `deadline` seconds after it came is given up: `overload` when it never got its turn,
    `scorer_failed` when the scorer hangs, raises or answers nonsense.

    Args:
        on_scored: called on the lane's thread with every finished batch.
    """

    def __init__(self, stage: Stage, on_scored: Callable[[list[Scored]], None], clock: Clock, metrics: Metrics) -> None:
        self._stage = stage
        self._on_scored = on_scored
        self._clock = clock
        self._metrics = metrics
        self._waiting: deque[_Waiting] = deque()
        self._running: _Batch | None = None
        self._lock = threading.Condition()
        self._scorer_lock = threading.Lock()  # scorers take one call at a time
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def scorer(self) -> Scorer:
        """The scorer in force."""
        return self._stage.scorer

    @property
    def deadline(self) -> float:
        return self._stage.deadline

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def use(self, stage: Stage) -> None:
        """Score by `stage` from the next batch on."""
        self._stage = stage

    def stalled(self) -> bool:
        """Whether the scorer has been at one batch for longer than the deadline."""
        running = self._running
        return running is not None and running.started_at + self.deadline <= self._clock.monotonic()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="observer-scorer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no further batch; one that runs is waited for, since a model cannot be interrupted."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(timeout=STOP_WAIT_S)

    def submit(self, candidate: Candidate) -> None:
        with self._lock:
            self._waiting.append(_Waiting(candidate, self._clock.monotonic()))
            self._lock.notify()

    def next_deadline(self) -> float | None:
        """When `expire` may next have something."""
        with self._lock:
            starts = [self._waiting[0].since] if self._waiting else []
            if self._running is not None and self._running.candidates:
                starts.append(self._running.started_at)
            return min(starts) + self.deadline if starts else None

    def expire(self, now: float) -> list[Scored]:
        """Give up what is over its deadline."""
        given_up: list[Candidate] = []
        with self._lock:
            running = self._running
            hangs = running is not None and running.started_at + self.deadline <= now
            why: Unscored = "scorer_failed" if hangs else "overload"
            if running is not None and hangs:
                given_up += running.candidates
                running.candidates = []  # its answers, should they come, find nobody
            while self._waiting and self._waiting[0].since + self.deadline <= now:
                given_up.append(self._waiting.popleft().candidate)
        self._metrics.scorer_failures.labels(why).inc(len(given_up))
        return [self.unscored(candidate, why) for candidate in given_up]

    def score_now(self, candidate: Candidate) -> Scored:
        """Score one candidate on the calling thread (for a dry run)."""
        if not self._scorer_lock.acquire(timeout=self.deadline):
            return self.unscored(candidate, "overload")
        try:
            return self._score_batch([candidate])[0]
        finally:
            self._scorer_lock.release()

    def run_once(self) -> bool:
        """Score one batch if anything waits."""
        with self._lock:
            if not self._waiting:
                return False
            taken = self._take()
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

    def unscored(self, candidate: Candidate, failure: Unscored) -> Scored:
        """A candidate that gets no score."""
        return Scored(candidate, None, failure, self.scorer.model, self.scorer.model_version)

    def _take(self) -> list[Candidate]:
        """The next batch: at least one, else as many as fit its count and its tokens."""
        stage = self._stage
        taken = [self._waiting.popleft().candidate]
        tokens = stage.cost(taken[0].trace)
        while self._waiting and len(taken) < stage.max_batch:
            tokens += stage.cost(self._waiting[0].candidate.trace)
            if tokens > stage.max_batch_tokens:
                break
            taken.append(self._waiting.popleft().candidate)
        return taken

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._stopping:
                    self._lock.wait()
                if self._stopping:
                    return
            self.run_once()

    def _score_batch(self, candidates: list[Candidate]) -> list[Scored]:
        scorer = self.scorer
        scores: Sequence[Score | None]
        try:
            scores = checked(scorer.score([c.trace for c in candidates if c.trace is not None]), len(candidates))
        except Exception as error:
            down = isinstance(error, ObserverError) and not isinstance(error, InputError)
            if down:  # a server that does not answer: asking once more per trace would only hold up the next batch
                log.warning("scorer %s: %s", scorer.model, error)
                self._metrics.scorer_failures.labels("scorer_failed").inc(len(candidates))
                return [self.unscored(candidate, "scorer_failed") for candidate in candidates]
            if len(candidates) > 1:  # one bad trace must not take its neighbours' scores
                return [scored for candidate in candidates for scored in self._score_batch([candidate])]
            log.exception("scorer %s failed on trace %s", scorer.model, candidates[0].trace_id)
            self._metrics.scorer_failures.labels("scorer_failed").inc()
            scores = [None]
        return [
            Scored(candidate, score, None if score is not None else "scorer_failed", scorer.model, scorer.model_version)
            for candidate, score in zip(candidates, scores, strict=True)
        ]


def checked(scores: Sequence[Score], expected: int) -> Sequence[Score]:
    """The scores, if there is one per trace and each is a probability.

    Raises:
        ValueError: not so.
    """
    if len(scores) != expected:
        raise ValueError(f"{len(scores)} scores for {expected} traces")
    for score in scores:
        if not (0.0 <= score.p_wrong <= 1.0 and 0.0 <= score.p_wrong_raw <= 1.0):  # also refuses NaN
            raise ValueError(f"{score.p_wrong_raw} → {score.p_wrong} is not a probability")
    return scores


def earliest(moments: Sequence[float | None]) -> float | None:
    """The first of the moments that are known."""
    first = min((moment for moment in moments if moment is not None), default=math.inf)
    return None if first == math.inf else first
