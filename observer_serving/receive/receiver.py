"""The one way in for spans, shared by OTLP/HTTP and OTLP/gRPC: decode, validate, write ahead, acknowledge."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from observer_core.traces.otlp import DecodeError, parse_request, protobuf_from_json, resources_from_json
from observer_core.traces.otlp_json import TooManySpansError
from observer_serving.buffer.protocol import Buffer, BufferUnavailableError
from observer_serving.buffer.received import JsonTrace, Received
from observer_serving.clock import Clock
from observer_serving.metrics import Metrics
from observer_serving.receive.layout import MIN_SPAN_BYTES, OddWireError, survey
from observer_serving.receive.status import BAD_DATA, OVERLOADED, TOO_LARGE, Encoding, RefusedError
from observer_serving.receive.values import check_json, check_protobuf
from observer_serving.receive.wire import Cut, cut, cut_resources
from observer_serving.redact import Redactor

RETRY_AFTER = 1.0
_MENDED_BYTES = 4 << 20
"""Larger requests with texts that are no Unicode are refused: their texts would be looked at for too long."""
_OFF_LOOP_BYTES, _OFF_LOOP_PROTOBUF_BYTES = 1 << 20, 4 << 20
"""What is larger is decoded on another thread: it would hold the event loop for tens of milliseconds. What is redacted
takes as long as JSON. One at a time, since Python runs one at a time: several would only take turns."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the client is told of a request that is on disk; `rejected` spans must not be sent again.

    A message without rejected spans is a warning.
    """

    rejected: int
    message: str

    def response(self) -> ExportTraceServiceResponse:
        """Full success leaves `partial_success` unset."""
        response = ExportTraceServiceResponse()
        if self.message:
            response.partial_success.rejected_spans = self.rejected
            response.partial_success.error_message = self.message
        return response

    def body(self, encoding: Encoding) -> bytes:
        """The response as an HTTP body."""
        if encoding == "protobuf":
            return self.response().SerializeToString()
        if not self.message:
            return b"{}"
        partial = {"rejectedSpans": str(self.rejected), "errorMessage": self.message}
        return orjson.dumps({"partialSuccess": partial})


_ALL = Accepted(0, "")


@dataclass(frozen=True, slots=True)
class Most:
    """What one request may hold: `spans` counts resources and scopes too, `values` are attributes and all else that
    there may be many of."""

    spans: int
    values: int


class Gate:
    """Whether new work is taken at all: not while draining, nor while more than `max_bytes` wait for a decision."""

    def __init__(self, max_bytes: int, backlog_bytes: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._backlog_bytes = backlog_bytes
        self.draining = False

    def check(self) -> None:
        """
        Raises:
            RefusedError: overloaded or draining; retryable.
        """
        if self.draining:
            raise RefusedError(OVERLOADED, "the service is shutting down; send again", retry_after=RETRY_AFTER)
        if self._backlog_bytes() > self._max_bytes:
            raise RefusedError(OVERLOADED, "more waits for a decision than fits; send again", retry_after=RETRY_AFTER)


class Receiver:
    """Accepts export requests and JSON traces; nothing is acknowledged before the buffer has it. Requests that hold
    more than `most` are refused."""

    def __init__(
        self,
        buffer: Buffer,
        gate: Gate,
        clock: Clock,
        metrics: Metrics,
        redactor: Redactor | None = None,
        *,
        most: Most,
    ) -> None:
        self._buffer = buffer
        self._gate = gate
        self._clock = clock
        self._metrics = metrics
        self._most = most
        self._large = ThreadPoolExecutor(1, "observer-decode")
        self.redactor = redactor
        """What takes out of a request what must not be written down; `None` when nothing is to be."""

    def redacted(self, data: bytes) -> bytes:
        """A trace's JSON as it may be written down."""
        return data if self.redactor is None else self.redactor.trace(data)

    def accept_spans(self, body: bytes, encoding: Encoding) -> asyncio.Future[Accepted]:
        """Take an uncompressed request body in; the future is done when what is accepted is safe.

        No task of its own for every request: that would cost as much as decoding a small one.

        Raises:
            RefusedError: undecodable (permanent), or overloaded, disk full, draining (retryable); at once or by the
                future.
        """
        self._gate.check()
        received_ns = self._clock.now_ns()
        redactor = self.redactor
        is_quick = encoding == "protobuf" and redactor is None
        if len(body) > (_OFF_LOOP_PROTOBUF_BYTES if is_quick else _OFF_LOOP_BYTES):
            return asyncio.ensure_future(self._accept_large(received_ns, body, encoding, redactor))
        return self._accept(received_ns, _decode(body, encoding, redactor, self._most))

    def accept_trace(self, trace_id: bytes, data: bytes) -> asyncio.Future[Accepted]:
        """Take in a trace given as JSON text (already valid); the future is done when it is safe.

        Raises:
            RefusedError: overloaded, disk full, draining; at once or by the future.
        """
        self._gate.check()
        return self._log(Received(self._clock.now_ns(), (JsonTrace(trace_id, data),)), _ALL)

    async def _accept_large(
        self, received_ns: int, body: bytes, encoding: Encoding, redactor: Redactor | None
    ) -> Accepted:
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._large, _decode, body, encoding, redactor, self._most)
        return await self._accept(received_ns, result)

    def _accept(self, received_ns: int, result: Cut) -> asyncio.Future[Accepted]:
        if result.rejected:
            self._metrics.reject_spans(result.rejected)
        accepted = Accepted(result.rejected, result.message) if result.message else _ALL
        if result.pieces:
            return self._log(Received(received_ns, tuple(result.pieces)), accepted)
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        future.set_result(accepted)
        return future

    def _log(self, received: Received, accepted: Accepted) -> asyncio.Future[Accepted]:
        """Done when the entry is safe."""
        try:
            safe = self._buffer.append(received)
        except BufferUnavailableError as error:
            raise _come_back(error) from None
        future: asyncio.Future[Accepted] = safe.get_loop().create_future()

        def tell(safe: asyncio.Future[None]) -> None:
            if safe.cancelled() or future.cancelled():
                future.cancel()
            elif (error := safe.exception()) is None:
                future.set_result(accepted)
            else:
                future.set_exception(_come_back(error) if isinstance(error, BufferUnavailableError) else error)

        safe.add_done_callback(tell)
        return future


def _come_back(error: BufferUnavailableError) -> RefusedError:
    return RefusedError(OVERLOADED, f"{error}; send again", retry_after=RETRY_AFTER)


def _decode(body: bytes, encoding: Encoding, redactor: Redactor | None, most: Most) -> Cut:
    try:
        try:
            return _decoded(body, encoding, redactor, most)
        except DecodeError:
            mended = _with_whole_texts(body, encoding) if len(body) <= _MENDED_BYTES else None
            if mended is None:
                raise
            return _decoded(mended, encoding, redactor, most)
    except DecodeError as error:
        raise RefusedError(BAD_DATA, str(error)) from None
    except OddWireError:
        raise RefusedError(
            BAD_DATA, "not an ExportTraceServiceRequest as protobuf writes it; send OTLP traces"
        ) from None
    except TooManySpansError:
        raise RefusedError(
            TOO_LARGE,
            f"more than {most.spans} resources, scopes and spans in one request; send less at once or raise "
            "receive.max_request_spans",
        ) from None


def _with_whole_texts(body: bytes, encoding: Encoding) -> bytes | None:
    # Not with the module: few clients ever send such texts.
    from observer_core.traces.broken_texts import whole_json, whole_protobuf

    return whole_json(body) if encoding == "json" else whole_protobuf(body)


def _decoded(body: bytes, encoding: Encoding, redactor: Redactor | None, most: Most) -> Cut:
    layout = None
    if encoding == "json":
        check_json(body, most.values)
        if redactor is None:
            return cut_resources(resources_from_json(body, most.spans))
        body = protobuf_from_json(body, most.spans)
    else:
        check_protobuf(body, most.values)
        if len(body) > most.spans * MIN_SPAN_BYTES:
            layout = survey(body, most.spans)
    message = parse_request(body)
    if redactor is not None:
        body, layout = redactor.spans(message, body), None
    return cut(message, body, layout)
