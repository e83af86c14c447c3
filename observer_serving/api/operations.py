"""`/v1/stats`, `/metrics`, `/healthz`, `/readyz`."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from observer_serving.api.parts import Parts
from observer_serving.api.schemas import Readiness, StatsBody


def router(parts: Parts) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.get("/v1/stats")
    def get_stats() -> StatsBody:
        """The figures of the dashboard."""
        figures: dict[str, Any] = parts.stats.snapshot(parts.clock.monotonic())
        model = None if parts.scoring.loading else parts.scoring.route().model
        return StatsBody(
            **figures,
            open_traces=parts.engine.open_traces,
            decisions_on_record=parts.record.count(),
            threshold=parts.decider.threshold(),
            wal_bytes=parts.wal.size,
            wal_segments=parts.wal.segments,
            wal_damaged_bytes=sum(damage.size for damage in parts.wal.damage),
            undeliverable=parts.undeliverable.count(),
            waiting_for_scorer=parts.scoring.waiting,
            model=model.model if model else "loading",
            model_version=model.model_version if model else "",
            policy_version=parts.decider.policy().version,
            trace_url=parts.trace_url,
            exporters=[{"name": exporter.name, **asdict(exporter.stats())} for exporter in parts.exporters],
        )

    @routes.get("/metrics", response_class=Response)
    def get_metrics() -> Response:
        """Prometheus text format."""
        parts.metrics.wal_bytes.set(parts.wal.size)
        parts.metrics.wal_damaged_bytes.set(sum(damage.size for damage in parts.wal.damage))
        parts.metrics.undeliverable_files.set(parts.undeliverable.count())
        parts.metrics.threshold.set(parts.decider.threshold())
        return Response(parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes


def health(parts: Parts) -> APIRouter:
    """Probes, which need no key and tell no secrets."""
    routes = APIRouter(tags=["operations"])

    @routes.get("/healthz")
    def healthz() -> dict[str, str]:
        """200 while the process lives."""
        return {"status": "ok"}

    @routes.get("/readyz", responses={503: {"model": Readiness}})
    def readyz() -> JSONResponse:
        """200 when traces can be taken and decided; else 503 with the parts that are not ready."""
        listeners, scorer = parts.listeners(), None
        if parts.scoring.loading:
            scorer = "the model is loading"
        elif hanging := parts.scoring.stalled():
            scorer = f"{', '.join(hanging)} hangs; switch the model or restart"
        problems = {
            "receiver": "shutting down" if parts.gate.draining else parts.wal.refuses(),
            "log": parts.wal.failure,
            "engine": parts.engine.failure if parts.engine.alive else "the engine has stopped; restart the service",
            "scorer": scorer,
            "listeners": None if listeners else "not listening yet",
        }
        ready = not any(problems.values())
        body = Readiness(
            ready=ready,
            parts={name: problem is None for name, problem in problems.items()},
            problems={name: problem for name, problem in problems.items() if problem},
        )
        return JSONResponse(body.model_dump(), status_code=200 if ready else 503)

    return routes
