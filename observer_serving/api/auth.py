"""The API key: `Authorization: Bearer <api_key>` on every route that gives or takes data."""

import hmac

from fastapi import Request

from observer_serving.receive.status import UNAUTHENTICATED, RefusedError


class KeyGuard:
    """A FastAPI dependency; without a key everything passes (the service then listens on loopback only)."""

    def __init__(self, api_key: str | None) -> None:
        self._wanted = f"Bearer {api_key}".encode() if api_key else None

    def __call__(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if self._wanted is not None and not hmac.compare_digest(given, self._wanted):
            raise RefusedError(UNAUTHENTICATED, "send the header 'Authorization: Bearer <api_key>'")
