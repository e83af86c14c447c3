"""HTTP connections that do not wait for ever, and not too many of them.

A client that connects and never asks, or stops in the middle of a request, would hold one of the process's file
descriptors, until none is left for other clients, nor for the log and the decisions.
"""

import asyncio
import logging
import random
import resource
import socket
import ssl
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
_SAY_AGAIN_SECONDS = 60.0
_SHARE = 4  # of the file descriptors: three ports, and the rest for everything else
_LOOKED_AT = 64
_ACCEPT_AGAIN_SECONDS = 0.1


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
            log.warning("more than %d connections: idle ones are closed; raise the limit of open files", self.most)
        return False

    def let_in(self, newest: "PatientProtocol | _Arrival", connections: set[Any]) -> bool:
        """Whether a connection, the newest of these, may stay: if there are too many, one whose client lets it wait
        goes, of a few the one that has waited longest. Else who takes all there are would keep everybody else out."""
        if self.admits(len(connections)):
            return True
        few = random.sample(list(connections), min(len(connections), _LOOKED_AT))
        idle = [one for one in few if one is not newest and one.is_idle()]
        longest = min(idle, key=lambda one: one.waits_since, default=newest)
        longest.end()
        return longest is not newest


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's connection, ended when its client keeps it waiting: for a whole head since it connected or began it,
    for more of a body, or to take an answer before it is closed. Between an answer and the next request it may rest
    for as long as uvicorn's `timeout_keep_alive` says."""

    def __init__(self, *args: Any, doorkeeper: Doorkeeper, **options: Any) -> None:
        super().__init__(*args, **options)
        self._doorkeeper = doorkeeper
        self.waits_since = 0.0
        self._look_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.got_on()
        # Who comes through a `TlsDoor` has been let in.
        if self.scheme == "https" or self._doorkeeper.let_in(self, self.connections):
            self._look_timer = self.loop.call_later(self._doorkeeper.patience, self._look)

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
        self.waits_since = self.loop.time()

    def is_in_body(self) -> bool:
        """Whether a request's head has come and not all of its body."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def is_waiting(self) -> bool:
        """Whether it is the client's turn."""
        return self.cycle is None or self.cycle.response_complete or self.is_in_body()

    def is_idle(self) -> bool:
        """Whether nothing is lost with it but what its client has not finished."""
        return not self.transport.is_closing() and (self.timeout_keep_alive_task is not None or self.is_waiting())

    def end(self) -> None:
        self.transport.abort()

    def _unset_keepalive_if_required(self) -> None:
        if self.timeout_keep_alive_task is not None:  # the rest is over
            self.got_on()
        super()._unset_keepalive_if_required()

    def _look(self) -> None:
        rests = self.timeout_keep_alive_task is not None
        waited = self.loop.time() - self.waits_since if self.is_waiting() and not rests else 0.0
        if self.transport.is_closing() or waited >= self._doorkeeper.patience:
            self.transport.abort()
        else:
            self._look_timer = self.loop.call_later(self._doorkeeper.patience - waited, self._look)


class TlsDoor:
    """Takes in a socket's connections under TLS. Each counts from the beginning: where the event loop accepts them by
    itself nobody knows of one before its client has agreed on the encryption, which it may take a minute to do, or not
    do at all.

    Args:
        protocol: makes what a connection is for.
        connections: all of the listener's.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        doorkeeper: Doorkeeper,
        protocol: Callable[[], asyncio.Protocol],
        connections: set[Any],
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._context = context
        self._doorkeeper = doorkeeper
        self._protocol = protocol
        self._connections = connections

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._socket)
            except OSError:  # there is no file descriptor left, or the client has gone again
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            opening = loop.connect_accepted_socket(
                self._protocol, client, ssl=self._context, ssl_handshake_timeout=self._doorkeeper.patience
            )
            arrival = _Arrival(loop, client, opening, self._connections)
            self._connections.add(arrival)
            self._doorkeeper.let_in(arrival, self._connections)


class _Arrival:
    """A connection whose client has still to agree on its encryption."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        opening: Coroutine[Any, Any, Any],
        connections: set[Any],
    ) -> None:
        self._client = client
        self._connections = connections
        self.waits_since = loop.time()
        self._opening = loop.create_task(opening)
        self._opening.add_done_callback(self._opened)

    def is_idle(self) -> bool:
        return not (self._opening.done() or self._opening.cancelling())

    def end(self) -> None:
        self._opening.cancel()

    shutdown = end

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        self._connections.discard(self)
        error = asyncio.CancelledError() if opening.cancelled() else opening.exception()
        if error is not None:
            self._client.close()
        if not isinstance(error, OSError | asyncio.CancelledError | None):  # of TLS errors the client is told
            log.error("cannot take a connection", exc_info=error)
