"""Tools that fail: `tool_error` and `tool_timeout`, for good, or once and harmlessly."""

import random
from dataclasses import dataclass
from typing import Any

from observer_pipeline.agent.faults.injection import Injection
from observer_pipeline.agent.questions import AgentQuestion

ERRORS = (
    "503 Service Unavailable",
    "Internal error: index shard 2 is not assigned",
    "429 Too Many Requests: rate limit reached",
    "Connection reset by peer",
    "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
)
TIMEOUTS = (
    "Request timed out after 10 s",
    "504 Gateway Timeout",
    "deadline exceeded while waiting for the search back end",
)


def tool_error(question: AgentQuestion, rng: random.Random) -> Injection:
    """From some call on, the tools answer with errors."""
    return _broken("tool_error", ERRORS, question, rng)


def tool_timeout(question: AgentQuestion, rng: random.Random) -> Injection:
    """From some call on, the tools time out."""
    return _broken("tool_timeout", TIMEOUTS, question, rng)


def tool_error_harmless(_question: AgentQuestion, rng: random.Random) -> Injection:
    """One call fails; the next attempt works."""
    return _hiccup("tool_error", ERRORS, rng)


def tool_timeout_harmless(_question: AgentQuestion, rng: random.Random) -> Injection:
    """One call times out; the next attempt works."""
    return _hiccup("tool_timeout", TIMEOUTS, rng)


@dataclass(frozen=True, slots=True)
class Failing:
    """Calls from `first` up to (not including) `end` fail with `message`.

    The tool has done its work before its result is thrown away, so that a failed call takes no less time than others.
    """

    first: int
    end: int | None
    message: str

    def __call__(self, number: int, _tool: str, result: dict[str, Any]) -> dict[str, Any]:
        fails = self.first <= number and (self.end is None or number < self.end)
        return {"error": self.message} if fails else result


def _broken(kind: str, messages: tuple[str, ...], question: AgentQuestion, rng: random.Random) -> Injection:
    # Seldom from the first call on: a run without any evidence is wrong at a glance, and teaches nothing.
    first = min(rng.choice((0, *[1] * 7, *[2] * 12)), max(1, len(question.supporting_titles)))
    fault = Failing(first, None, rng.choice(messages))
    return Injection(kind, {"from_call": first, "message": fault.message}, results=fault)


def _hiccup(kind: str, messages: tuple[str, ...], rng: random.Random) -> Injection:
    at = rng.randrange(2)
    fault = Failing(at, at + 1, rng.choice(messages))
    return Injection(kind, {"call": at, "message": fault.message}, harmless=True, results=fault)
