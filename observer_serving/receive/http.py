"""OTLP/HTTP: what a request on this port must be, and how it is answered. The connection is `OtlpProtocol`'s."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from observer_serving.access import Keys
from observer_serving.receive.compression import decompress, too_large
from observer_serving.receive.receiver import RETRY_AFTER, Accepted, Receiver
from observer_serving.receive.status import (
    CONTENT_TYPES,
    INTERNAL,
    NOT_FOUND,
    OVERLOADED,
    UNAUTHENTICATED,
    UNSUPPORTED,
    WRONG_METHOD,
    Encoding,
    RefusedError,
    encoding_of,
    other_signal,
)

log = logging.getLogger(__name__)

PATH = "/v1/traces"
_OTHER_SIGNALS = {"/v1/metrics": "metrics", "/v1/logs": "logs", "/v1development/profiles": "profiles"}


@dataclass(slots=True)
class Request:
    """A request's head; names of headers are in lower case.

    `encoding` is how its body is said to be encoded, `None` when that is nothing we know.
    """

    method: str
    path: str
    headers: dict[bytes, bytes]
    encoding: Encoding | None = field(init=False)

    def __post_init__(self) -> None:
        self.encoding = encoding_of(self.headers.get(b"content-type", b""))


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; `headers` are those beside the content's type and length."""

    status: int
    encoding: Encoding
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


_SUCCESS: dict[Encoding, Answer] = {
    encoding: Answer(200, encoding, Accepted(0, "").body(encoding)) for encoding in CONTENT_TYPES
}


class OtlpHttp:
    """What is answered on the OTLP/HTTP port.

    Args:
        max_request: bytes; a larger body is refused.
        max_bodies: bytes; above so many that have come and are not answered, over all connections, clients are told to
            come back. One body always fits.
    """

    def __init__(
        self, receiver: Receiver, keys: Keys, *, max_request: int, max_bodies: int = 256 << 20, path: str = PATH
    ) -> None:
        self._receiver = receiver
        self._path = path
        self._keys = keys
        self.max_request = max_request
        self._max_bodies = max(max_bodies, max_request)
        self._bodies = 0

    def hold(self, size: int) -> bool:
        """Count `size` more bytes of bodies (fewer, if negative); whether they fit."""
        self._bodies += size
        return self._bodies <= self._max_bodies

    def refusal(self, request: Request) -> Answer | None:
        """The answer to a request that its head alone rules out, before its body is read."""
        try:
            self._check(request)
        except RefusedError as refusal:
            return refused(refusal, request.encoding)
        return None

    def answer(self, request: Request, body: bytes, reply: Callable[[Answer], None]) -> None:
        """Take the spans in. `reply` is called with the answer once they are safe, or at once with a refusal."""
        encoding = request.encoding
        assert encoding is not None, "the head has been checked"
        try:
            compression = request.headers.get(b"content-encoding")
            if compression is not None:
                body = decompress(body, compression.decode("latin-1"), self.max_request)
            accepting = self._receiver.accept_spans(body, encoding)
        except Exception as error:
            reply(_instead(error, encoding))
        else:
            accepting.add_done_callback(lambda done: reply(_outcome(done, encoding)))

    def _check(self, request: Request) -> None:
        path = request.path.rstrip("/")
        if path != self._path and path in _OTHER_SIGNALS:
            raise other_signal(_OTHER_SIGNALS[path])
        if path != self._path:
            raise RefusedError(NOT_FOUND, f"nothing at {request.path}; OTLP traces go to POST {self._path}")
        if request.method != "POST":
            raise RefusedError(WRONG_METHOD, f"{request.method} is not allowed here; use POST {self._path}")
        self._keys.check(request.headers.get(b"authorization", b""), "ingest")
        announced = request.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self.max_request:
            raise too_large(self.max_request)
        if request.encoding is None:
            given = request.headers.get(b"content-type", b"").decode("latin-1")
            raise RefusedError(
                UNSUPPORTED,
                f"content type {given or '(none)'} is not supported; use application/x-protobuf or application/json",
            )


def too_many() -> RefusedError:
    """The refusal of a body for which there is no memory at the moment."""
    return RefusedError(OVERLOADED, "too many requests are coming in at once; send again", retry_after=RETRY_AFTER)


def _outcome(done: asyncio.Future[Accepted], encoding: Encoding) -> Answer:
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    if error is not None:
        return _instead(error, encoding)
    accepted = done.result()
    return Answer(200, encoding, accepted.body(encoding)) if accepted.message else _SUCCESS[encoding]


def _instead(error: BaseException, encoding: Encoding) -> Answer:
    """The answer when an error kept the spans from being taken in."""
    if isinstance(error, RefusedError):
        return refused(error, encoding)
    log.error("cannot answer an OTLP request", exc_info=error)
    return refused(RefusedError(INTERNAL, "a fault in observer; its log says more"), encoding)


def refused(refusal: RefusedError, encoding: Encoding | None) -> Answer:
    """A refusal as a `Status` in the request's encoding, or in JSON when it has none that we know."""
    extra: list[tuple[bytes, bytes]] = []
    if refusal.retry_after is not None:
        extra.append((b"retry-after", str(max(1, math.ceil(refusal.retry_after))).encode()))
    if refusal.kind is WRONG_METHOD:
        extra.append((b"allow", b"POST"))
    if refusal.kind is UNAUTHENTICATED:
        extra.append((b"www-authenticate", b"Bearer"))
    spoken: Encoding = encoding or "json"
    return Answer(refusal.kind.http, spoken, refusal.body(spoken), tuple(extra))
