"""The body of an HTTP request under ASGI, given up as soon as it is longer than allowed."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from observer_serving.receive.compression import too_large

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGoneError(Exception):
    """Nobody is left to answer."""


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """The whole body as it was sent, still compressed.

    Raises:
        RefusedError: more than `limit` bytes, announced or sent.
        ClientGoneError: the connection ended first.
    """
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        part = event.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
        more = event.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)
