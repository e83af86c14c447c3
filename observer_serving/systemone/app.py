"""`/v1/systemone` as a plain ASGI application, so that every answer is the contract's and a request costs little.

A request is read, checked, planned on a thread of its own (tokens are made there), computed by the model thread
together with whatever else waits, and answered. A request that says the same as one under way gets that one's answer.
A client that leaves takes its request out of the queue, unless others wait for the same.
"""

import asyncio
import contextlib
import functools
import hashlib
import hmac
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from prometheus_client import CONTENT_TYPE_LATEST

from observer_core.decision.protocol import ContextOverflowError, DecisionModel, Plan, Reading
from observer_core.errors import InputError, ObserverError
from observer_serving.receive.body import ClientGoneError, Receive, Send, read_body
from observer_serving.receive.compression import decompress
from observer_serving.receive.status import TOO_LARGE, RefusedError
from observer_serving.systemone.batching import ModelThread
from observer_serving.systemone.card import ModelCard
from observer_serving.systemone.errors import WireError, invalid, problem, refused
from observer_serving.systemone.limits import Limits
from observer_serving.systemone.metrics import Metrics
from observer_serving.systemone.wire import Request, read_request, response_body

log = logging.getLogger(__name__)

DECIDE = "/v1/systemone"
OPEN_PATHS = frozenset({"/healthz"})
"""What needs no key."""
CLIENT_GONE = 499
JSON = "application/json"

T = TypeVar("T")
Headers = dict[bytes, bytes]
Answer = tuple[bytes, str]
"""A body and its content type."""


@dataclass(slots=True)
class _UnderWay:
    """The work for one request's bytes, and how many clients wait for it."""

    work: asyncio.Task[tuple[Plan, Reading]]
    waiting: int = 0


class SystemOne:
    """The ASGI application over one decision model. `start` it on the event loop that serves it, `stop` it there.

    Args:
        key: what `Authorization: Bearer` has to carry; without one everything passes.
        truncate: cut a state that does not fit (and say so in `x_state_truncated`) instead of refusing it.
    """

    def __init__(
        self,
        model: DecisionModel,
        card: ModelCard,
        *,
        limits: Limits | None = None,
        key: str | None = None,
        truncate: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._model, self._card, self._truncate = model, card, truncate
        self._key = key.encode() if key else None
        self._metrics = Metrics()
        self._computing = ModelThread(model, self._metrics, batch_tokens=self.limits.batch_tokens)
        self._planning = ThreadPoolExecutor(1, thread_name_prefix="observer-systemone-plan")
        self._under_way: dict[bytes, _UnderWay] = {}
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._draining = False
        self._routes: dict[str, tuple[str, Callable[[Headers, Receive], Awaitable[Answer]]]] = {
            DECIDE: ("POST", self._decide),
            "/v1/models": ("GET", self._models),
            "/healthz": ("GET", self._health),
            "/metrics": ("GET", self._figures),
        }

    def start(self) -> None:
        self._computing.start()

    async def stop(self) -> None:
        """Refuse what comes from now on, answer what was taken in (for at most `limits.drain` seconds)."""
        until = time.monotonic() + self.limits.drain
        self._draining = True
        with contextlib.suppress(TimeoutError):  # what is still open then is cut off with its connection
            await asyncio.wait_for(self._none_open.wait(), self.limits.drain)
        self._planning.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._computing.stop, max(0.0, until - time.monotonic()))

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        request_id = uuid.uuid4().hex
        path = scope["path"].rstrip("/")
        extra: list[tuple[bytes, bytes]] = []
        try:
            body, content_type = await self._route(path, scope["method"], dict(scope["headers"]), receive)
            status = 200
        except WireError as error:
            status, body, content_type, extra = error.status, error.body, JSON, error.headers
            if status == 500:
                log.error("%s", error, extra={"fields": {"request_id": request_id}})
        except ClientGoneError:
            status, body, content_type = CLIENT_GONE, b"", JSON
        except Exception:
            log.exception("cannot answer", extra={"fields": {"request_id": request_id}})
            error = refused(500, "unknown", f"a fault in observer; its log says more (request {request_id})")
            status, body, content_type = error.status, error.body, JSON
        if path == DECIDE:
            self._metrics.requests.labels(str(status)).inc()
            if status == 200:
                self._metrics.request_seconds.observe(time.perf_counter() - started)
        if status == CLIENT_GONE:
            return
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"x-typesafe-request-id", request_id.encode()),
            *extra,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _route(self, path: str, method: str, headers: Headers, receive: Receive) -> Answer:
        if path not in self._routes:
            raise refused(404, "not_found", f"nothing at {path or '/'}; questions go to POST {DECIDE}")
        wanted, answer = self._routes[path]
        if method != wanted and (method, wanted) != ("HEAD", "GET"):
            message = f"{method} is not allowed here; use {wanted} {path}"
            raise WireError(405, {"error_type": "method_not_allowed", "message": message}, allow=wanted)
        if path not in OPEN_PATHS:
            self._check_key(headers)
        return await answer(headers, receive)

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        given = headers.get(b"authorization", b"")
        if not given:
            raise refused(403, "authentication_error", "send the header 'Authorization: Bearer <key>'")
        scheme, _, key = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            raise refused(
                401, "authentication_error", "this is not the server's key; send 'Authorization: Bearer <key>'"
            )

    async def _models(self, _headers: Headers, _receive: Receive) -> Answer:
        return orjson.dumps(self._card.to_json()), JSON

    async def _health(self, _headers: Headers, _receive: Receive) -> Answer:
        if self._draining or not self._computing.alive:
            raise refused(503, "unknown", "shutting down" if self._draining else "the model thread has ended; restart")
        return orjson.dumps({"status": "ok"}), JSON

    async def _figures(self, _headers: Headers, _receive: Receive) -> Answer:
        return self._metrics.render(), CONTENT_TYPE_LATEST

    async def _decide(self, headers: Headers, receive: Receive) -> Answer:
        with self._taken_in():
            data = await self._body(headers, receive)
            request = self._understood(data)
            plan, reading = await self._while_connected(self._read_once(data, request), receive)
        for answer in reading.answers.values():
            self._metrics.questions.labels(answer.type).inc()
        self._metrics.input_tokens.inc(plan.input_tokens)
        self._metrics.states_truncated.inc(reading.truncated)
        return response_body(self._card.concrete, plan, reading), JSON

    @contextlib.contextmanager
    def _taken_in(self) -> Iterator[None]:
        """A place among the open requests.

        Raises:
            WireError: 503, there is none.
        """
        if self._draining:
            raise self._overloaded("the server is shutting down")
        if self._open >= self.limits.waiting:
            raise self._overloaded(f"{self._open} requests wait already")
        self._open += 1
        self._none_open.clear()
        self._metrics.open_requests.set(self._open)
        try:
            yield
        finally:
            self._open -= 1
            self._metrics.open_requests.set(self._open)
            if not self._open:
                self._none_open.set()

    def _overloaded(self, why: str) -> WireError:
        return refused(503, "overloaded", f"{why}; come back later", retry_after=self._computing.retry_after())

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The body as it was before compression."""
        content_type = headers.get(b"content-type", b"").decode("latin-1").strip().lower()
        if content_type.startswith("multipart/"):
            raise refused(415, "invalid_request", "this model reads no images; send the request as application/json")
        limit = self.limits.body
        try:
            async with asyncio.timeout(self.limits.read):
                data = await read_body(headers, receive, limit)
            return decompress(data, headers.get(b"content-encoding", b"").decode("latin-1"), limit)
        except TimeoutError:
            raise refused(408, "timeout", f"the body did not arrive within {self.limits.read:g} s") from None
        except RefusedError as error:
            if error.kind is TOO_LARGE:
                raise refused(
                    413, "request_too_large", f"the request has more than {limit} bytes uncompressed; send less"
                ) from None
            raise refused(error.kind.http, "invalid_request", error.message) from None

    def _understood(self, data: bytes) -> Request:
        request = read_request(data, max_questions=self.limits.questions)
        if request.model not in self._card.names:
            names = ", ".join(self._card.names)
            raise refused(400, "unknown_model", f"no model {request.model[:100]!r} here; this server has {names}")
        return request

    async def _read_once(self, data: bytes, request: Request) -> tuple[Plan, Reading]:
        """What `_read` gives, for all clients that wait for the same at once; given up when none of them is left."""
        key = hashlib.sha256(data).digest()
        same = self._under_way.get(key)
        if same is None:
            same = self._under_way[key] = _UnderWay(asyncio.ensure_future(self._read(request)))
        same.waiting += 1
        try:
            return await asyncio.shield(same.work)
        finally:
            same.waiting -= 1
            if not same.waiting:
                same.work.cancel()
                if self._under_way.get(key) is same:
                    del self._under_way[key]

    async def _read(self, request: Request) -> tuple[Plan, Reading]:
        """Plan and compute.

        Raises:
            WireError: the request does not fit (413), cannot be asked (422), must come back later (503), or the model
                failed on it (500).
        """
        planned = functools.partial(self._model.plan, request.state, request.questions, strict=not self._truncate)
        try:
            plan = await asyncio.get_running_loop().run_in_executor(self._planning, planned)
        except ContextOverflowError as error:
            raise refused(413, "tokens_exceeded", str(error)) from None
        except InputError as error:
            raise invalid([problem(["questions"], str(error), "value_error")]) from None
        if plan.cost > self.limits.request_tokens:
            raise refused(
                413,
                "tokens_exceeded",
                f"the questions about this state take {plan.cost} tokens to compute, and one request may take "
                f"{self.limits.request_tokens} here; ask fewer questions at once",
            )
        if self._computing.backlog + plan.cost > self.limits.waiting_tokens:
            raise self._overloaded(f"{self._computing.backlog} tokens wait already")
        try:
            return plan, await self._computing.run(plan)
        except ObserverError as error:
            raise refused(500, "unknown", str(error)) from error

    async def _while_connected(self, work: Awaitable[T], receive: Receive) -> T:
        """The result of `work`, given up when the client leaves or the deadline passes.

        Raises:
            ClientGoneError: the client left.
            WireError: 503, the deadline passed.
        """
        working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
        try:
            done, _ = await asyncio.wait(
                {working, leaving}, timeout=self.limits.deadline, return_when=asyncio.FIRST_COMPLETED
            )
            if working in done:
                return working.result()
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
        if leaving in done:
            raise ClientGoneError
        raise refused(
            503,
            "timeout",
            f"no answer within {self.limits.deadline:g} s; come back later or ask fewer questions at once",
            retry_after=self._computing.retry_after(),
        )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
