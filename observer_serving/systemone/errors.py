"""Errors as the wire contract words them: a list of problems for an invalid body, one object for everything else.

422 is `{"detail": [{"loc": ["body", …], "msg", "type"}]}`, FastAPI's form; every other error is
`{"detail": {"error_type", "message"}}`.
"""

import math
from collections.abc import Sequence
from typing import Any

import orjson

from observer_core.errors import ObserverError

MAX_PROBLEMS = 20
"""Of an invalid body, how many are told."""


class WireError(ObserverError):
    """A request that is not answered. `retry_after` (seconds) is set when coming back helps."""

    def __init__(self, status: int, detail: Any, *, retry_after: float | None = None, allow: str | None = None) -> None:
        super().__init__(detail["message"] if isinstance(detail, dict) else detail[0]["msg"])
        self.status, self.detail = status, detail
        self.retry_after, self.allow = retry_after, allow

    @property
    def body(self) -> bytes:
        return orjson.dumps({"detail": self.detail})

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that belong to this error."""
        out = []
        if self.retry_after is not None:
            out.append((b"retry-after", str(max(1, math.ceil(self.retry_after))).encode()))
        if self.allow is not None:
            out.append((b"allow", self.allow.encode()))
        if self.status == 401:
            out.append((b"www-authenticate", b"Bearer"))
        if self.status == 408:  # the rest of the body may still come
            out.append((b"connection", b"close"))
        return out


def refused(status: int, error_type: str, message: str, *, retry_after: float | None = None) -> WireError:
    """An error that is not about the form of the body."""
    return WireError(status, {"error_type": error_type, "message": message}, retry_after=retry_after)


def invalid(problems: Sequence[dict[str, Any]]) -> WireError:
    """A body that is not a request: 422 with at most `MAX_PROBLEMS` problems, each `loc`, `msg`, `type`."""
    return WireError(422, list(problems[:MAX_PROBLEMS]))


def problem(loc: Sequence[str | int], message: str, kind: str) -> dict[str, Any]:
    """One problem of a body, at a path below it."""
    return {"type": kind, "loc": ["body", *loc], "msg": message}
