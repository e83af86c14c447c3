"""`POST /v1/traces` and `POST /v1/traces:score`: a trace given as JSON."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Request

from observer_core.errors import InputError
from observer_core.traces.jsonl import parse_trace
from observer_core.traces.to_spans import wire_trace_id
from observer_core.traces.trace import Trace
from observer_serving.api.parts import Parts
from observer_serving.api.schemas import AcceptedBody, DecisionBody, TraceBody
from observer_serving.buffer.received import JsonTrace
from observer_serving.candidate import from_json
from observer_serving.receive.compression import too_large


def router(parts: Parts) -> APIRouter:
    routes = APIRouter(tags=["traces"])

    async def read(request: Request) -> tuple[Trace, bytes]:
        """The trace exactly as posted: the declared body model is for the reference, not for reading."""
        data = await request.body()
        if len(data) > parts.max_request:
            raise too_large(parts.max_request)
        try:
            return parse_trace(data.decode("utf-8")), data
        except UnicodeDecodeError as error:
            raise InputError(f"the body is not UTF-8 (byte {error.start}); send a trace as JSON") from None
        except InputError:
            parts.metrics.traces_received.inc()
            parts.metrics.traces_rejected.inc()
            raise

    @routes.post("/v1/traces", status_code=202)
    async def post_trace(request: Request, _: Annotated[TraceBody, Body()]) -> AcceptedBody:
        """Take a trace in: it is on disk when this answers, decided soon after, and exported if kept.

        The same `trace_id` twice is one trace. Without one, every call is a new trace.
        """
        trace, data = await read(request)
        trace_id = wire_trace_id(trace.trace_id)
        await parts.receiver.accept_trace(trace_id, data)
        return AcceptedBody(trace_id=trace_id.hex())

    @routes.post("/v1/traces:score")
    async def score_trace(request: Request, _: Annotated[TraceBody, Body()]) -> DecisionBody:
        """The decision for a trace, now. Nothing is recorded, counted or exported."""
        trace, data = await read(request)
        item = JsonTrace(wire_trace_id(trace.trace_id), data)
        candidate = from_json(item, received_ns=parts.clock.now_ns(), segment=0, now=parts.clock.monotonic())
        scored = await asyncio.to_thread(parts.scoring.score_now, candidate)
        return DecisionBody.of(parts.decider.preview(scored))

    return routes
