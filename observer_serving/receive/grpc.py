"""OTLP/gRPC: the same way in as OTLP/HTTP, told in gRPC's words."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn

import grpc
import grpc.aio

from observer_serving.access import Keys
from observer_serving.connections import Doorkeeper
from observer_serving.receive.receiver import Receiver
from observer_serving.receive.status import BAD_DATA, INTERNAL, RefusedError, other_signal

log = logging.getLogger(__name__)

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_OTHER_SIGNALS = {
    "opentelemetry.proto.collector.metrics.v1.MetricsService": "metrics",
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
    "opentelemetry.proto.collector.profiles.v1development.ProfilesService": "profiles",
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_INT_MAX = 2**31 - 1
_IDLE_MS = 600_000
"""How long a connection without a call is kept; clients are told, and connect again when they have something."""
_Context = grpc.aio.ServicerContext
_Method = Callable[[AsyncIterator[bytes], _Context], Awaitable[bytes]]


def build_server(
    receiver: Receiver, keys: Keys, *, max_request: int, doorkeeper: Doorkeeper | None = None
) -> grpc.aio.Server:
    """A server with the trace service; the caller binds its port. gzip is unpacked by gRPC, which also refuses
    messages above `max_request` bytes with RESOURCE_EXHAUSTED."""
    doorkeeper = doorkeeper or Doorkeeper()
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_request),
            ("grpc.so_reuseport", 0),  # a taken port is an error, not a second listener
            # As on the other ports; without these one client could take every file descriptor of the process.
            ("grpc.max_allowed_incoming_connections", min(doorkeeper.most, _INT_MAX)),
            ("grpc.server_handshake_timeout_ms", int(doorkeeper.patience * 1000)),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
        ]
    )
    methods = {SERVICE: _export(receiver, keys)} | {name: _not_ours(s) for name, s in _OTHER_SIGNALS.items()}
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, {"Export": grpc.stream_unary_rpc_method_handler(method)})
            for name, method in methods.items()
        )
    )
    return server


def _export(receiver: Receiver, keys: Keys) -> _Method:
    """The method on raw bytes: a body that is no protobuf is then INVALID_ARGUMENT, not gRPC's own INTERNAL.

    It asks for its one message itself, which is the same on the wire: else gRPC would read it before there is anybody
    to look at the key.
    """

    async def export(messages: AsyncIterator[bytes], context: _Context) -> bytes:
        try:
            given = dict(context.invocation_metadata() or ()).get("authorization", "")
            keys.check(str(given).encode(), "ingest")
            body = await anext(messages, None)
            if body is None:
                raise RefusedError(BAD_DATA, "the call has no message; send an ExportTraceServiceRequest")
            accepted = await receiver.accept_spans(body, "protobuf")
        except RefusedError as refusal:
            await _abort(context, refusal)
        except Exception:
            log.exception("cannot answer an OTLP/gRPC request")
            await _abort(context, RefusedError(INTERNAL, "a fault in observer; its log says more"))
        return accepted.response().SerializeToString()

    return export


def _not_ours(signal: str) -> _Method:
    """One endpoint variable configures all signals of a client: say which to switch off."""

    async def export(_messages: AsyncIterator[bytes], context: _Context) -> bytes:
        await _abort(context, other_signal(signal))

    return export


async def _abort(context: _Context, refusal: RefusedError) -> NoReturn:
    details = (("grpc-status-details-bin", refusal.status().SerializeToString()),)
    await context.abort(_CODES[refusal.kind.grpc], refusal.message, details)
    raise AssertionError("abort always raises")
