"""OTLP/HTTP: `POST /v1/traces` as a plain ASGI application, so that every answer is ours and a request costs little."""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from observer_serving.access import Keys
from observer_serving.receive.compression import decompress, too_large
from observer_serving.receive.receiver import Receiver
from observer_serving.receive.status import (
    CONTENT_TYPES,
    INTERNAL,
    NOT_FOUND,
    UNAUTHENTICATED,
    UNSUPPORTED,
    WRONG_METHOD,
    Encoding,
    RefusedError,
)

log = logging.getLogger(__name__)

PATH = "/v1/traces"
_OTHER_SIGNALS = {"/v1/metrics": "metrics", "/v1/logs": "logs", "/v1development/profiles": "profiles"}
_ENCODINGS: dict[str, Encoding] = {content_type: encoding for encoding, content_type in CONTENT_TYPES.items()}
_ENCODINGS["application/protobuf"] = "protobuf"

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class OtlpHttp:
    """The ASGI application on the OTLP/HTTP port."""

    def __init__(self, receiver: Receiver, keys: Keys, *, max_request: int) -> None:
        self._receiver = receiver
        self._max_request = max_request
        self._keys = keys

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"").decode("latin-1").split(";", 1)[0].strip().lower()
        encoding = _ENCODINGS.get(content_type)
        spoken: Encoding = encoding or "json"
        try:
            self._check(scope, headers)
            body = await self._read(headers, receive)
            if encoding is None:
                raise RefusedError(
                    UNSUPPORTED,
                    f"content type {content_type or '(none)'} is not supported; "
                    f"use application/x-protobuf or application/json",
                )
            data = decompress(body, headers.get(b"content-encoding", b"").decode("latin-1"), self._max_request)
            accepted = await self._receiver.accept_spans(data, encoding)
        except RefusedError as refusal:
            await _refuse(send, refusal, spoken)
        except _ClientGoneError:
            return
        except Exception:
            log.exception("cannot answer an OTLP request")
            await _refuse(send, RefusedError(INTERNAL, "a fault in observer; its log says more"), spoken)
        else:
            await _answer(send, 200, accepted.body(encoding), CONTENT_TYPES[encoding])

    def _check(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> None:
        path = scope["path"].rstrip("/")
        if path in _OTHER_SIGNALS:
            signal = _OTHER_SIGNALS[path]
            raise RefusedError(
                NOT_FOUND, f"observer takes traces only, not {signal}; set OTEL_{signal.upper()}_EXPORTER=none"
            )
        if path != PATH:
            raise RefusedError(NOT_FOUND, f"nothing at {scope['path']}; OTLP traces go to POST {PATH}")
        if scope["method"] != "POST":
            raise RefusedError(WRONG_METHOD, f"{scope['method']} is not allowed here; use POST {PATH}")
        self._keys.check(headers.get(b"authorization", b""), "ingest")

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, given up as soon as it is longer than allowed."""
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._max_request:
            raise too_large(self._max_request)
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _ClientGoneError
        body = event.get("body", b"")
        if not event.get("more_body"):
            if len(body) > self._max_request:
                raise too_large(self._max_request)
            return body
        parts, size = [body], len(body)
        while event.get("more_body"):
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _ClientGoneError
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > self._max_request:
                raise too_large(self._max_request)
        return b"".join(parts)


class _ClientGoneError(Exception):
    """Nobody is left to answer."""


async def _refuse(send: Send, refusal: RefusedError, encoding: Encoding) -> None:
    extra: list[tuple[bytes, bytes]] = []
    if refusal.retry_after is not None:
        extra.append((b"retry-after", str(max(1, math.ceil(refusal.retry_after))).encode()))
    if refusal.kind is WRONG_METHOD:
        extra.append((b"allow", b"POST"))
    if refusal.kind is UNAUTHENTICATED:
        extra.append((b"www-authenticate", b"Bearer"))
    await _answer(send, refusal.kind.http, refusal.body(encoding), CONTENT_TYPES[encoding], extra)


async def _answer(
    send: Send, status: int, body: bytes, content_type: str, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        *(extra or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
