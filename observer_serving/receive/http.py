"""OTLP/HTTP: `POST /v1/traces` as a plain ASGI application, so that every answer is ours and a request costs little."""

import logging
import math
from typing import Any

from observer_serving.access import Keys
from observer_serving.receive.body import ClientGoneError, Receive, Send, read_body
from observer_serving.receive.compression import decompress
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
    encoding_of,
    other_signal,
)

log = logging.getLogger(__name__)

PATH = "/v1/traces"
_OTHER_SIGNALS = {"/v1/metrics": "metrics", "/v1/logs": "logs", "/v1development/profiles": "profiles"}


class OtlpHttp:
    """The ASGI application on the OTLP/HTTP port."""

    def __init__(self, receiver: Receiver, keys: Keys, *, max_request: int, path: str = PATH) -> None:
        self._receiver = receiver
        self._path = path
        self._max_request = max_request
        self._keys = keys

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"")
        encoding = encoding_of(content_type)
        spoken: Encoding = encoding or "json"
        try:
            self._check(scope, headers)
            body = await read_body(headers, receive, self._max_request)
            if encoding is None:
                raise RefusedError(
                    UNSUPPORTED,
                    f"content type {content_type.decode('latin-1') or '(none)'} is not supported; "
                    f"use application/x-protobuf or application/json",
                )
            data = decompress(body, headers.get(b"content-encoding", b"").decode("latin-1"), self._max_request)
            accepted = await self._receiver.accept_spans(data, encoding)
        except RefusedError as refusal:
            await _refuse(send, refusal, spoken)
        except ClientGoneError:
            return
        except Exception:
            log.exception("cannot answer an OTLP request")
            await _refuse(send, RefusedError(INTERNAL, "a fault in observer; its log says more"), spoken)
        else:
            await _answer(send, 200, accepted.body(encoding), CONTENT_TYPES[encoding])

    def _check(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> None:
        path = scope["path"].rstrip("/")
        if path != self._path and path in _OTHER_SIGNALS:
            raise other_signal(_OTHER_SIGNALS[path])
        if path != self._path:
            raise RefusedError(NOT_FOUND, f"nothing at {scope['path']}; OTLP traces go to POST {self._path}")
        if scope["method"] != "POST":
            raise RefusedError(WRONG_METHOD, f"{scope['method']} is not allowed here; use POST {self._path}")
        self._keys.check(headers.get(b"authorization", b""), "ingest")


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
