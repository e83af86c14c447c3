"""`POST /v1/traces` and `POST /v1/traces:score`: a trace given as JSON."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request

from observer_core.decisions import Decision
from observer_core.errors import InputError
from observer_core.traces.jsonl import parse_trace
from observer_core.traces.to_spans import wire_trace_id
from observer_core.traces.trace import Trace
from observer_serving.api.parts import Parts
from observer_serving.api.schemas import AcceptedBody, DecisionBody, TraceBody
from observer_serving.buffer.received import JsonTrace
from observer_serving.candidate import from_json, json_facts
from observer_serving.receive.compression import too_large
from observer_serving.receive.receiver import RETRY_AFTER
from observer_serving.receive.status import OVERLOADED, RefusedError

POLL_S = 0.01
GRACE_S = 5.0
"""How long after the scorer's deadline a decision is waited for: the disk may be slow."""


def router(parts: Parts) -> APIRouter:
    routes = APIRouter(tags=["traces"])

    async def read(request: Request) -> tuple[Trace, bytes]:
        """The trace exactly as posted: the declared body model is for the reference, not for reading."""
        data = await request.body()
        if len(data) > parts.max_request:
            raise too_large(parts.max_request)
        data = parts.receiver.redacted(data)
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
    async def score_trace(
        request: Request,
        _: Annotated[TraceBody, Body()],
        dry_run: Annotated[bool, Query(description="only say what would be decided now")] = False,
    ) -> DecisionBody:
        """Take a trace in and answer with its decision: recorded, counted and exported like any other.

        A trace that was decided before gets that decision again. With `dry_run` nothing is recorded.
        """
        trace, data = await read(request)
        item = JsonTrace(wire_trace_id(trace.trace_id), data)
        if dry_run:
            candidate = from_json(item, received_ns=parts.clock.now_ns(), segment=0, now=parts.clock.monotonic())
            scored = await asyncio.to_thread(parts.scoring.route(candidate.facts.project).score_now, candidate)
            return DecisionBody.of(parts.decider.preview(scored))
        await parts.receiver.accept_trace(item.trace_id, data)
        return DecisionBody.of(await _decision_about(item.trace_id.hex(), json_facts(trace).project))

    async def _decision_about(trace_id: str, project: str) -> Decision:
        until = time.monotonic() + parts.scoring.deadline(project) + GRACE_S
        while (decision := await asyncio.to_thread(parts.record.get, trace_id)) is None:
            if time.monotonic() > until:
                raise RefusedError(
                    OVERLOADED,
                    f"taken in but not decided yet; ask GET /v1/decisions/{trace_id}",
                    retry_after=RETRY_AFTER,
                )
            await asyncio.sleep(POLL_S)
        return decision

    return routes
