"""What a back end's answer to an export means. OTLP's rules, hardened by what back ends really do."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

_RESPONSE_CHARS = 2000
_MAX_RETRY_AFTER_S = 600.0


class Verdict(Enum):
    """ACCEPTED; WAIT: the data is not to blame, try again; BROKE: the data may be to blame; REFUSED: it is."""

    ACCEPTED = "accepted"
    WAIT = "wait"
    BROKE = "broke"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is `None` when nobody answered; `text` is the answer's body or the connection error."""

    verdict: Verdict
    status: int | None
    text: str
    retry_after_s: float | None = None
    body: bytes = b""
    protocol: str = "HTTP"

    def __str__(self) -> str:
        return f"{self.protocol} {self.status}: {self.text[:200]}" if self.status is not None else self.text


# 429, 502, 503 and 504 are OTLP's retryable codes, 408 is HTTP's. The others tell of the address, the key or a proxy:
# every trace would meet the same, so waiting for somebody to mend the settings loses none of them.
_WAIT = frozenset({408, 429, 502, 503, 504, 401, 403, 404, 405, 407, 415})


def judge(response: "httpx.Response") -> Answer:
    """Classify an HTTP response."""
    status = response.status_code
    text = response.text[:_RESPONSE_CHARS].strip()
    if 200 <= status < 300:
        return Answer(Verdict.ACCEPTED, status, "", body=response.content)
    if status in _WAIT or status < 400:
        return Answer(Verdict.WAIT, status, text, _retry_after(response.headers.get("retry-after")))
    # A corrupt body gives 500 in some back ends, a failing database does too.
    return Answer(Verdict.BROKE if status >= 500 else Verdict.REFUSED, status, text)


def unreachable(error: "httpx.HTTPError", endpoint: str) -> Answer:
    """Nobody answered, or not in time."""
    return Answer(Verdict.WAIT, None, f"no answer from {endpoint}: {error or type(error).__name__}")


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a number of seconds or an HTTP date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(0.0, seconds), _MAX_RETRY_AFTER_S)
