"""`GET /v1/decisions`: the decision record, searched and by trace."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException

from observer_core.decisions import CompleteReason, Severity, Verdict
from observer_core.errors import InputError
from observer_core.traces.to_spans import wire_trace_id
from observer_serving.api.parts import Parts
from observer_serving.api.schemas import DecisionBody, DecisionPage, ErasedBody
from observer_serving.clock import as_rfc3339

_LAST_ROW = (1 << 63) - 1
_Share = Annotated[float | None, Query(ge=0, le=1)]


def router(parts: Parts) -> APIRouter:
    routes = APIRouter(tags=["decisions"])

    @routes.get("/v1/decisions")
    def find_decisions(
        request: Request,
        decision: Verdict | None = None,
        reason: str | None = None,
        severity: Severity | None = None,
        project: str | None = None,
        model: str | None = None,
        model_version: str | None = None,
        policy_version: str | None = None,
        complete_reason: CompleteReason | None = None,
        min_p_wrong: _Share = None,
        max_p_wrong: _Share = None,
        since: Annotated[str | None, Query(description="RFC 3339 UTC, by decided_at, inclusive")] = None,
        until: Annotated[str | None, Query(description="RFC 3339 UTC, by decided_at, exclusive")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
    ) -> DecisionPage:
        """Decisions, newest first."""
        given = {
            "decision": decision, "reason": reason, "severity": severity, "project": project, "model": model,
            "model_version": model_version, "policy_version": policy_version, "complete_reason": complete_reason,
            "min_p_wrong": min_p_wrong, "max_p_wrong": max_p_wrong, "since": since, "until": until,
        }  # fmt: skip
        unknown = next((name for name in request.query_params if name not in {*given, "limit", "cursor"}), None)
        if unknown is not None:
            raise InputError(f"field '{unknown}': no such filter; there are {', '.join(given)}")
        for name, moment in (("since", since), ("until", until)):
            if moment is not None:
                try:
                    given[name] = as_rfc3339(moment)
                except ValueError as error:
                    raise InputError(f"field '{name}': {error}") from None
        if cursor is not None and not (cursor.isdecimal() and int(cursor) <= _LAST_ROW):
            raise InputError(f"field 'cursor': {cursor!r} is no cursor of ours; pass a page's next_cursor")
        filters = {name: value for name, value in given.items() if value is not None}
        page, more = parts.record.find(filters, limit=limit, before=int(cursor) if cursor else None)
        return DecisionPage(decisions=[DecisionBody.of(d) for d in page], next_cursor=str(more) if more else None)

    @routes.get("/v1/decisions/{trace_id}")
    def get_decision(trace_id: str) -> DecisionBody:
        """The decision about a trace; 404 while there is none (it may still be open)."""
        decision = parts.record.get(wire_trace_id(trace_id).hex())
        if decision is None:
            raise HTTPException(404, f"no decision about {trace_id} on record; it may still be open")
        return DecisionBody.of(decision)

    @routes.delete("/v1/traces/{trace_id}")
    def erase_trace(trace_id: str) -> ErasedBody:
        """Erase a trace everywhere the service keeps it; spans that come later are dropped. Repeating it is harmless.

        `exported` says that it was sent on: what the back ends store only they can erase.
        """
        return ErasedBody(**asdict(parts.eraser.erase(wire_trace_id(trace_id))))

    return routes
