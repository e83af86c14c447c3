"""The three listeners on one event loop: the API and OTLP/HTTP under uvicorn, OTLP/gRPC under grpc.aio."""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import uvicorn

from observer_core.errors import InputError
from observer_serving.config import TlsSettings, split_address
from observer_serving.connections import Doorkeeper, PatientProtocol, TlsDoor

log = logging.getLogger(__name__)

_BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
"""Longer than the pauses of exporters, 5 s by default and seldom more than a minute: a connection that is closed as it
is used again costs what was sent."""


def bind(name: str, address: str, *, mend: str | None = None) -> socket.socket:
    """A bound socket.

    Args:
        mend: what helps when the port is taken, for the error; else the setting `listen.<name>`.

    Raises:
        InputError: the port is taken, or the address is not this machine's.
    """
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        # Accepted connections inherit it; asyncio sets it only where the socket names its protocol, as this one does
        # not. Without it the body of an answer waits 40 ms for the client to confirm the head (Nagle, delayed ACK).
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except OSError as error:
        mend = mend or f"set listen.{name}"
        why = error.strerror or str(error)
        raise InputError(f"cannot listen on {address}: {why}; stop what uses it or {mend}") from None


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the service drains first and stops listening last."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """
    Raises:
        InputError: the files are not a certificate and its key.
    """
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls.ca) if tls.ca else None)
        context.load_cert_chain(tls.cert, tls.key)
        context.verify_mode = ssl.CERT_REQUIRED if tls.ca else ssl.CERT_NONE
        return context
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InputError(f"tls: cannot use {tls.cert} and {tls.key}: {error}") from None


class HttpListener:
    """An application on a bound socket; idle connections are kept for `keep_alive` seconds after an answer.

    Args:
        app: an ASGI application, or what `protocol` asks for answers.
        doorkeeper: how many connections there are at most, and how long each may keep the listener waiting.
    """

    def __init__(
        self,
        sock: socket.socket,
        app: Any,
        tls: TlsSettings | None = None,
        *,
        protocol: type[PatientProtocol] = PatientProtocol,
        keep_alive: int = KEEP_ALIVE_SECONDS,
        doorkeeper: Doorkeeper | None = None,
    ) -> None:
        self._socket = sock
        doorkeeper = doorkeeper or Doorkeeper()
        connection: Any = functools.partial(protocol, doorkeeper=doorkeeper)
        config = uvicorn.Config(
            app, http=connection, interface="asgi3", ws="none", lifespan="off", proxy_headers=False,
            log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=5,
            timeout_keep_alive=keep_alive,
        )  # fmt: skip
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None
        self._door: TlsDoor | None = None
        self._accepting: asyncio.Task[None] | None = None
        if tls is not None:
            state = self._server.server_state
            made = functools.partial(connection, config=config, server_state=state, app_state={})
            self._door = TlsDoor(sock, tls_context(tls), doorkeeper, made, state.connections)

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[] if self._door else [self._socket]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.001)
        if self._door is not None:
            self._accepting = asyncio.create_task(self._door.run())

    async def stop(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._socket.close()
        self._server.should_exit = True
        if self._task is not None:
            await self._task


class GrpcListener:
    """A gRPC server on `address`.

    Raises:
        InputError: the port is taken, or a TLS file cannot be read.
    """

    def __init__(self, server: grpc.aio.Server, address: str, tls: TlsSettings | None = None) -> None:
        self._server = server
        bind("otlp_grpc", address).close()  # gRPC itself would print its own lines about a taken port
        if tls is None:
            self.port = server.add_insecure_port(address)
            return
        credentials = grpc.ssl_server_credentials(
            [(tls.key.read_bytes(), tls.cert.read_bytes())], tls.ca.read_bytes() if tls.ca else None, tls.ca is not None
        )
        try:
            self.port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise InputError(f"tls: cannot use {tls.cert} and {tls.key}: {error}") from None

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(grace=1.0)
