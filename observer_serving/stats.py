"""The figures behind `/v1/stats` and the dashboard: totals since the start, rates of the last minute, distributions.

Written by the engine's thread, read by others without a lock: every read is of one whole object.
"""

from collections import Counter, deque
from typing import Any

from observer_core.decisions import Decision

HISTOGRAM_BINS = 20
_RATE_SECONDS = 60
_LATENCIES = 2000


class _Rate:
    """Events per second over the last minute."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=_RATE_SECONDS)

    def add(self, count: int, now: float) -> None:
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            second, count = second, count + self._seconds.pop()[1]
        self._seconds.append((second, count))

    def per_second(self, now: float, since: float) -> float:
        window = min(_RATE_SECONDS, max(1.0, now - since))
        return sum(count for second, count in list(self._seconds) if second > now - window - 1) / window


class Stats:
    """Figures of one service; `now` is monotonic seconds."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._spans = _Rate()
        self._decisions = _Rate()
        self._kept = _Rate()
        self.totals: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._scores = [0] * HISTOGRAM_BINS
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)

    def received(self, spans: int, now: float) -> None:
        self.totals["spans"] += spans
        self._spans.add(spans, now)

    def decided(self, decision: Decision, now: float) -> None:
        self.totals[decision.decision] += 1
        self.reasons[decision.reason] += 1
        self._decisions.add(1, now)
        if decision.decision == "keep":
            self._kept.add(1, now)
        if decision.p_wrong is not None:
            self._scores[min(int(decision.p_wrong * HISTOGRAM_BINS), HISTOGRAM_BINS - 1)] += 1
        self._latencies.append(decision.latency_ms)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Everything as plain values."""
        latencies = sorted(self._latencies)

        def quantile(q: float) -> float | None:
            return latencies[min(int(q * len(latencies)), len(latencies) - 1)] if latencies else None

        return {
            "uptime_s": round(now - self._started_at, 1),
            "spans_received": self.totals["spans"],
            "kept": self.totals["keep"],
            "dropped": self.totals["drop"],
            "spans_per_second": round(self._spans.per_second(now, self._started_at), 2),
            "decisions_per_second": round(self._decisions.per_second(now, self._started_at), 2),
            "kept_per_second": round(self._kept.per_second(now, self._started_at), 2),
            "reasons": dict(self.reasons.copy()),
            "p_wrong_histogram": list(self._scores),
            "latency_ms": {"p50": quantile(0.5), "p95": quantile(0.95), "p99": quantile(0.99)},
        }
