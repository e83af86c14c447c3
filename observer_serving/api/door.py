"""What is settled before a request to the API is read: who may send a body, how large, and from which web page.

The framework reads and parses a body before it asks any dependency, so keys and sizes that only routes look at would
let anybody fill the memory.
"""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from observer_serving.access import Keys
from observer_serving.receive.body import ClientGoneError, read_body
from observer_serving.receive.status import DENIED, RefusedError, headers_of
from observer_serving.receive.values import check_json

_SAFE = ("GET", "HEAD", "OPTIONS")
_UPLOADS = "/v1/model"
"""Its body may be a run directory, which goes to the disk as it comes."""


class Door:
    """An ASGI application in front of the API.

    Args:
        max_request: bytes that a body may have, uploads apart.
        max_values: values that it may have.
    """

    def __init__(self, api: ASGIApp, keys: Keys, *, max_request: int, max_values: int) -> None:
        self._api = api
        self._keys = keys
        self._max_request = max_request
        self._max_values = max_values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            try:
                self._check_page(scope, headers)
                if scope["method"] not in _SAFE:
                    self._keys.check(headers.get(b"authorization", b""), None)
                    if not _is_upload(scope, headers):
                        body = await read_body(headers, receive, self._max_request)
                        check_json(body, self._max_values)
                        receive = _whole(body, receive)
            except RefusedError as refusal:
                headers_out = headers_of(refusal) | {"connection": "close"}  # or the rest of the body would be taken in
                answer = JSONResponse({"error": refusal.message}, refusal.kind.http, headers=headers_out)
                await answer(scope, receive, send)
                return
            except ClientGoneError:
                return
        await self._api(scope, receive, send)

    def _check_page(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Keep web pages out that a browser on this machine shows: what has no key trusts whoever reaches it.

        Raises:
            RefusedError: a page of another origin wants to change something, or a foreign name leads here.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] not in _SAFE and urlsplit(origin.decode("latin-1")).netloc != host:
            raise RefusedError(DENIED, "a web page of another origin may not do this; send it without an Origin")
        if self._keys.none and host and not _is_local(host):
            raise RefusedError(DENIED, f"without a key only local names are served, not {host!r}; set api_key")


def _is_local(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_upload(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return scope["path"] == _UPLOADS and content_type != b"application/json"


def _whole(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then what else comes."""
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
