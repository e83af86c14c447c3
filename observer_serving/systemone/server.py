"""A System One server put together: how it starts, drains and stops."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

from observer_core.errors import InputError
from observer_serving.config import is_loopback
from observer_serving.listen import HttpListener, bind
from observer_serving.systemone.app import SystemOne

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 60
"""Idle connections are kept longer than clients keep theirs (30 s), so that none is closed as it is used again."""


def open_socket(host: str, port: int, *, has_key: bool) -> socket.socket:
    """The bound socket to serve on; 0 takes a free port.

    Raises:
        InputError: the port is taken, or other machines could reach a server that asks for no key.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not (has_key or is_loopback(address)):
        raise InputError(
            f"{address} can be reached from other machines; set a key (OBSERVER_SYSTEMONE_KEY) or use --host 127.0.0.1"
        )
    return bind("systemone", address, mend="give another --port")


class SystemOneServer:
    """One application on one socket. `start`, then `stop`; or `run` until a signal."""

    def __init__(self, app: SystemOne, sock: socket.socket) -> None:
        host, self._port = sock.getsockname()[:2]
        self._host = f"[{host}]" if ":" in host else host
        self._app = app
        self._listener = HttpListener(sock, app, keep_alive=KEEP_ALIVE_S)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        self._app.start()
        await self._listener.start()
        log.info("listening", extra={"fields": {"url": self.url}})

    async def stop(self) -> None:
        """Answer what was taken in, then stop listening; new requests meanwhile are told to come back."""
        await self._app.stop()
        await self._listener.stop()

    async def run(self, *, on_ready: Callable[["SystemOneServer"], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT; a second signal ends the drain."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        await self.start()
        if on_ready is not None:
            on_ready(self)
        await stopping.wait()
        log.info("draining")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await self.stop()
