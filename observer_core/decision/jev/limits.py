"""How fast a server may be asked: requests per minute, tokens per second, and pauses the server asks for."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

BURST_S = 1.0
"""A bucket holds what its rate gives in this time."""


class Clock(Protocol):
    """Seconds, and waiting for them."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Limits:
    """A server's limits; the defaults are those Jev's vendor documents. `concurrency` is requests under way at once."""

    requests_per_minute: float = 1200
    tokens_per_second: float = 250_000
    concurrency: int = 8


class RateLimiter:
    """Two token buckets and a common pause. Safe for many threads; each waits for its own turn, in order of arrival."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._rates = (limits.requests_per_minute / 60, limits.tokens_per_second)
        self._levels = [max(1.0, self._rates[0] * BURST_S), self._rates[1] * BURST_S]
        self._full = tuple(self._levels)
        self._at = clock.monotonic()
        self._paused_until = self._at

    def acquire(self, tokens: float) -> None:
        """Wait until a request of so many tokens may start.

        What is taken may put a bucket below zero: the next one waits until it is made up, so that a request larger
        than a bucket passes too.
        """
        with self._lock:
            now = self._clock.monotonic()
            passed, self._at = now - self._at, now
            wait = 0.0
            for i, need in enumerate((1.0, tokens)):
                self._levels[i] = min(self._full[i], self._levels[i] + passed * self._rates[i])
                wait = max(wait, -(self._levels[i] - min(need, self._full[i])) / self._rates[i])
                self._levels[i] -= need
            ready = now + wait
        while (left := max(ready, self._paused_until) - self._clock.monotonic()) > 0:
            self._clock.sleep(left)

    def pause(self, seconds: float) -> None:
        """Let nobody start for so long: the server said it is overloaded."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock.monotonic() + seconds)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, else `retry-after` (seconds or an HTTP date); else `None`."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        said = (headers.get(name) or "").strip()
        if not said:
            continue
        try:
            return max(0.0, float(said) / unit)
        except ValueError:
            pass
        try:
            return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            continue
    return None
