"""Shadow scorers: scored beside, recorded, never deciding and never waited for."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from observer_core.traces.trace import Trace
from observer_serving.candidate import Candidate
from observer_serving.metrics import Metrics
from observer_serving.score.lane import Stage, checked

log = logging.getLogger(__name__)

MAX_WAITING = 256
"""Traces that wait for one shadow scorer; what comes while so many wait is not scored by it, and counted."""
_STOP_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class ShadowScore:
    """What one shadow scorer says of a trace; `record` is what the decision record holds under its name."""

    trace_id: str
    name: str
    record: dict[str, Any]


class Shadow:
    """One shadow scorer on a thread of its own."""

    def __init__(self, name: str, stage: Stage, on_score: Callable[[ShadowScore], None], metrics: Metrics) -> None:
        self.name = name
        self._stage = stage
        self._on_score = on_score
        self._metrics = metrics
        self._waiting: deque[tuple[str, Trace]] = deque()
        self._lock = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"observer-shadow-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Drop what waits; a batch that runs is not waited for longer than a moment."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_WAIT_S)

    def submit(self, candidate: Candidate) -> None:
        """Score a candidate some time, if there is room."""
        if candidate.trace is None:
            return
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                self._metrics.shadow_scores.labels(self.name, "skipped").inc()
                return
            self._waiting.append((candidate.trace_id, candidate.trace))
            self._lock.notify()

    def run_once(self) -> bool:
        """Score one batch if anything waits."""
        stage = self._stage
        with self._lock:
            if not self._waiting:
                return False
            taken = [self._waiting.popleft() for _ in range(min(stage.max_batch, len(self._waiting)))]
        scorer = stage.scorer
        try:
            scores = checked(scorer.score([trace for _, trace in taken]), len(taken))
        except Exception as error:
            log.warning("shadow scorer %s failed on %d traces: %s", self.name, len(taken), error)
            self._metrics.shadow_scores.labels(self.name, "failed").inc(len(taken))
            return True
        self._metrics.shadow_scores.labels(self.name, "scored").inc(len(taken))
        for (trace_id, _), score in zip(taken, scores, strict=True):
            record = {
                "p_wrong": score.p_wrong,
                "p_wrong_raw": score.p_wrong_raw,
                "model": scorer.model,
                "model_version": scorer.model_version,
            }
            self._on_score(ShadowScore(trace_id, self.name, record))
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._stopping:
                    self._lock.wait()
                if self._stopping:
                    return
            self.run_once()
