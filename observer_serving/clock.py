"""Time as something handed in, so that tests move it instead of sleeping."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """`monotonic` (seconds) drives every timer; `now_ns` (UNIX nanoseconds) only stamps records."""

    def monotonic(self) -> float: ...

    def now_ns(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """A clock that stands still until `advance` moves both readings; wall time alone can be set apart by `jump`."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._monotonic = 0.0
        self._now_ns = now_ns

    def monotonic(self) -> float:
        return self._monotonic

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._now_ns += int(seconds * 1e9)

    def jump(self, seconds: float) -> None:
        """Move wall time only, as a corrected system clock does."""
        self._now_ns += int(seconds * 1e9)


def rfc3339(unix_ns: int) -> str:
    """UNIX nanoseconds as RFC 3339 UTC with microseconds."""
    seconds, nanos = divmod(unix_ns, 1_000_000_000)
    stamp = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)
    return stamp.isoformat(timespec="microseconds").replace("+00:00", "Z")


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d)(?::(\d\d)(?:\.(\d+))?)?Z?", re.ASCII)


def as_rfc3339(text: str) -> str:
    """A moment in UTC, written to the minute, the second, or any part of one, in the form of `rfc3339`, so that the two
    compare as texts. What is finer than a microsecond counts as the next one: no `rfc3339` lies between.

    Raises:
        ValueError: it is none.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not RFC 3339 UTC; write 2026-01-31T12:00:00Z")
    minute, second, part = found.groups()
    try:
        moment = datetime.fromisoformat(f"{minute}:{second or '00'}+00:00")
        micros = -(-int((part or "0")[:30].ljust(30, "0")) // 10**24)
        moment += timedelta(microseconds=micros)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time that exists ({error}); write 2026-01-31T12:00:00Z") from None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
