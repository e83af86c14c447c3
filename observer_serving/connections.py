"""HTTP connections that do not wait for ever, and not too many of them.

A client that connects and never asks, or stops in the middle of a request, would hold one of the process's file
descriptors, until none is left for other clients, nor for the log and the decisions.
"""

import asyncio
import logging
import resource
import sys
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
_SAY_AGAIN_SECONDS = 60.0
_SHARE = 4  # of the file descriptors: two ports, and as many for everything else


class Doorkeeper:
    """How many connections a listener has at most, and how long each may keep it waiting (seconds)."""

    def __init__(self, most: int | None = None, patience: float = PATIENCE_SECONDS) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = (sys.maxsize if files == resource.RLIM_INFINITY else files // _SHARE) if most is None else most
        self.patience = patience
        self._said_at = float("-inf")

    def admits(self, connections: int) -> bool:
        """Whether there may be so many."""
        if connections <= self.most:
            return True
        if time.monotonic() - self._said_at >= _SAY_AGAIN_SECONDS:
            self._said_at = time.monotonic()
            log.warning("more than %d connections: new ones are closed; raise the limit of open files", self.most)
        return False


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's connection, ended when its client keeps it waiting: for a whole head since it connected or since its
    last answer, for more of a body, or to take an answer before it is closed."""

    def __init__(self, *args: Any, doorkeeper: Doorkeeper, **options: Any) -> None:
        super().__init__(*args, **options)
        self._doorkeeper = doorkeeper
        self._waits_since = 0.0
        self._look_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.got_on()
        if self._doorkeeper.admits(len(self.connections)):
            self._look_timer = self.loop.call_later(self._doorkeeper.patience, self._look)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_in_body():
            self.got_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.got_on()

    def got_on(self) -> None:
        """Begin to wait anew."""
        self._waits_since = self.loop.time()

    def is_in_body(self) -> bool:
        """Whether a request's head has come and not all of its body."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def is_waiting(self) -> bool:
        """Whether it is the client's turn."""
        return self.cycle is None or self.cycle.response_complete or self.is_in_body()

    def _look(self) -> None:
        waited = self.loop.time() - self._waits_since if self.is_waiting() else 0.0
        if self.transport.is_closing() or waited >= self._doorkeeper.patience:
            self.transport.abort()
        else:
            self._look_timer = self.loop.call_later(self._doorkeeper.patience - waited, self._look)
