"""The key of a request to the API, looked at before its route runs."""

from fastapi import Request

from observer_serving.access import Keys, Role


class KeyGuard:
    """A FastAPI dependency: `reads` is what GET needs, `writes` what every other method needs."""

    def __init__(self, keys: Keys, *, reads: Role, writes: Role) -> None:
        self._keys = keys
        self._reads: Role = reads
        self._writes: Role = writes

    def __call__(self, request: Request) -> None:
        role = self._reads if request.method == "GET" else self._writes
        self._keys.check(request.headers.get("authorization", "").encode("latin-1"), role)  # the bytes as sent
