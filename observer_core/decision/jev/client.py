"""A `DecisionModel` over a System One server: cached, within its limits, checked before it is believed."""

import math
import os
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from observer_core.decision.jev.cache import AnswerCache, Answered, request_key
from observer_core.decision.jev.cost import Cost, estimate_tokens
from observer_core.decision.jev.limits import Clock, Limits, RateLimiter, SystemClock, retry_after
from observer_core.decision.jev.wire import question_json, read_answers
from observer_core.decision.protocol import ContextOverflowError, Plan, Reading
from observer_core.errors import InputError, ObserverError
from observer_core.questions import Question

KEY_ENV, URL_ENV, MODEL_ENV = "TYPESAFE_API_KEY", "TYPESAFE_BASE_URL", "TYPESAFE_DEFAULT_MODEL"
DEFAULT_URL, DEFAULT_MODEL = "https://api.typesafe.ai", "jev-latest"
NO_KEY = "none"
"""Sent as the key to servers that want none: the SDK always sends one, and such servers have to put up with it."""

SAME = 0.05
"""How far two answers to the same question may be apart (what the conformance suite grants a noisy server)."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, and how patiently.

    Args:
        endpoint: base URL, with or without `/v1/systemone`.
        model: name or alias asked for.
        timeout: seconds of one request.
        attempts: tries of one request in all.
        max_wait: the longest pause, in seconds, that is taken on the server's word; above it the request fails.
    """

    endpoint: str = DEFAULT_URL
    model: str = DEFAULT_MODEL
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 10.0
    attempts: int = 5
    max_wait: float = 60.0
    limits: Limits = field(default_factory=Limits)

    @property
    def base_url(self) -> str:
        return self.endpoint.rstrip("/").removesuffix("/v1/systemone")

    @classmethod
    def from_env(cls) -> "Server | None":
        """The server the SDK's environment variables name; `None` without a key in `TYPESAFE_API_KEY`."""
        key, url, model = (os.environ.get(name, "").strip() for name in (KEY_ENV, URL_ENV, MODEL_ENV))
        return cls(url or DEFAULT_URL, model or DEFAULT_MODEL, key) if key else None


class _Response(BaseModel):
    """The envelope, as tolerant as the SDK allows: the answers are checked by `wire.read_answers`."""

    model: str
    answers: dict[str, Any]
    usage: Any = None
    x_state_truncated: Any = False  # `observer systemone` says so

    @property
    def input_tokens(self) -> int | None:
        counted = self.usage.get("input_tokens") if isinstance(self.usage, dict) else None
        if isinstance(counted, bool) or not isinstance(counted, int | float) or not 0 <= counted < math.inf:
            return None
        return int(counted)


@dataclass(slots=True)
class Spent:
    """What was asked of a server so far; `models` are the concrete ones that answered, also from the cache."""

    requests: int = 0
    cached: int = 0
    input_tokens: int = 0
    models: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        by = f", answered by {', '.join(sorted(self.models))}" if self.models else ""
        return f"{self.requests:,} requests ({self.cached:,} from the cache), {self.input_tokens:,} input tokens{by}"


class JevModel:
    """Asks a System One server through the official SDK.

    Before its first answer is believed, a server is asked the same questions again under other ids, in another order
    and twice each: one whose answers depend on that is refused, since its numbers could not be compared.

    Args:
        cache: keep answers in this SQLite file, and take them from there.
        clock: what waits between requests (for tests).

    Raises:
        InputError: the SDK is not installed, or the key cannot be sent.
    """

    def __init__(self, server: Server, *, cache: Path | None = None, clock: Clock | None = None) -> None:
        try:
            from typesafe_sdk import RetryPolicy, TypeSafeClient, TypeSafeError
        except ModuleNotFoundError:
            raise InputError("typesafe-sdk is not installed; install observer-pipeline[jev]") from None
        self.server, self.spent = server, Spent()
        self._clock = clock or SystemClock()
        self._limiter = RateLimiter(server.limits, self._clock)
        self._cache = None if cache is None else AnswerCache(cache)
        self._lock = threading.Lock()
        self._checked = False
        try:
            # Uncompressed: not every compatible server reads zstd. Retries are ours, so that one pause holds for all.
            self._client = TypeSafeClient(
                api_key=server.api_key or NO_KEY,
                base_url=server.base_url,
                model=server.model,
                timeout=server.timeout,
                retry=RetryPolicy(max_retries=0),
                compression=False,
            )
        except TypeSafeError as error:
            raise InputError(f"{error} Check {KEY_ENV}.") from error

    def plan(self, state: Any, questions: Mapping[str, Question], *, strict: bool = False) -> Plan:  # noqa: ARG002
        """The request as it will be sent. Token counts are estimates; what is too long only the server can tell."""
        if state is None:
            raise InputError("a state is a text or a JSON object or array, not null")
        body = {name: question_json(name, question) for name, question in questions.items()}
        tokens = estimate_tokens(state) + estimate_tokens(body)
        return Plan(questions, tokens, tokens, False, (state, body))

    def cost(self, plans: Sequence[Plan]) -> Cost:
        """What running `plans` will cost, cached answers left out, the check of the server (see the class) included."""
        plans = plans if self._checked or not plans else [*plans, self._check_of(plans[0])]
        fresh = [plan for plan in plans if self._known(plan) is None]
        return Cost.of(
            self.server.model,
            requests=len(fresh),
            cached=len(plans) - len(fresh),
            tokens=sum(plan.input_tokens for plan in fresh),
        )

    def run(self, plans: Sequence[Plan]) -> list[Reading]:
        """One reading per plan, in order, several requests at a time.

        Raises:
            ContextOverflowError: the server says that a request is too long.
            InputError: it refuses the key, the model or a request.
            ObserverError: it cannot be reached, stays overloaded, or gave something that is no answer.
        """
        if self._checked or not plans:
            return self._run(plans)
        first = self._first(plans[0])
        self._checked = True
        return [first, *self._run(plans[1:])]

    def _first(self, plan: Plan) -> Reading:
        """The first reading, from a server whose answers do not depend on a question's id, place or company."""
        first, second = self._run([plan, self._check_of(plan)])
        for name, question in plan.questions.items():
            one = first.answers[name].probabilities
            for copy in ("x", "y"):
                other = second.answers[f"{copy}_{name}"].probabilities
                apart = max(abs(one[option] - other[option]) for option in one)
                if apart > SAME:
                    raise ObserverError(
                        f"{self.server.base_url} answers one and the same {question.type} differently (by {apart:.2f}) "
                        "under another id, place or company; its numbers cannot be compared, use another server"
                    )
        return first

    def _check_of(self, plan: Plan) -> Plan:
        """The same questions about the same state under other ids, in another order and company."""
        backwards = list(plan.questions.items())[::-1]
        return self.plan(
            plan.prepared[0], {f"{copy}_{name}": question for copy in ("x", "y") for name, question in backwards}
        )

    def close(self) -> None:
        """Close connections and the cache."""
        self._client.close()
        if self._cache is not None:
            self._cache.close()

    def _run(self, plans: Sequence[Plan]) -> list[Reading]:
        if len(plans) < 2:
            return [self._answer(plan) for plan in plans]
        with ThreadPoolExecutor(self.server.limits.concurrency, thread_name_prefix="jev") as pool:
            pending = [pool.submit(self._answer, plan) for plan in plans]
            try:
                return [future.result() for future in pending]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _answer(self, plan: Plan) -> Reading:
        known = self._known(plan)
        answered = known or self._ask(plan)
        answers = read_answers(plan.questions, answered.answers)
        if known is None and self._cache is not None:  # only what was checked is kept
            self._cache.put(self._key(plan), self.server.base_url, self.server.model, answered)
        with self._lock:
            self.spent.models.add(answered.model)
            self.spent.cached += known is not None
            self.spent.requests += 1
            self.spent.input_tokens += 0 if known else answered.input_tokens or plan.input_tokens
        return Reading(answers, answered.truncated)

    def _key(self, plan: Plan) -> str:
        return request_key(self.server.base_url, self.server.model, *plan.prepared)

    def _known(self, plan: Plan) -> Answered | None:
        return None if self._cache is None else self._cache.get(self._key(plan))

    def _ask(self, plan: Plan) -> Answered:
        from typesafe_sdk import TypeSafeAPIConnectionError, TypeSafeAPIError, TypeSafeError

        state, questions = plan.prepared
        for attempt in range(1, self.server.attempts + 1):
            self._limiter.acquire(plan.input_tokens)
            try:
                response = self._client.system_one(state, questions, response_model=_Response)
                return Answered(
                    response.answers, response.model, response.input_tokens, response.x_state_truncated is True
                )
            except TypeSafeAPIError as error:
                if not (error.status in (408, 429) or error.status >= 500):
                    raise _refused(error.status, str(error)) from error
                asked = retry_after(error.headers)
                self._wait(attempt, asked, _line(error), error)
            except TypeSafeAPIConnectionError as error:  # time-outs too
                self._wait(attempt, None, f"{self.server.base_url}: {_line(error)}", error)
            except TypeSafeError as error:
                raise InputError(f"the request cannot be sent: {_line(error)}") from error
        raise AssertionError("the last attempt raises")

    def _wait(self, attempt: int, asked: float | None, said: str, error: Exception) -> None:
        """Hold all requests back before the next attempt; raise after the last one."""
        wait = asked if asked is not None else min(5.0, 0.5 * 2 ** (attempt - 1)) * random.uniform(0.75, 1.0)
        if attempt == self.server.attempts:
            raise ObserverError(f"{said}; gave up after {attempt} attempts, try again later") from error
        if wait > self.server.max_wait:
            raise ObserverError(f"{said}; it asks to wait {wait:.0f} s, try again then") from error
        self._limiter.pause(wait)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _refused(status: int, message: str) -> ObserverError:
    said = " ".join(message.split())[:300]
    if status == 413:
        return ContextOverflowError(f"{said}; shorten the state or ask fewer questions")
    if status in (401, 403):
        return InputError(f"{said}; check the key ({KEY_ENV})")
    if status < 400:
        return ObserverError(f"{said} The server's answer is not System One's; check the address and the server")
    return InputError(f"{said}; check the address, the model's name and the questions")
