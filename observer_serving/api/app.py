"""The JSON API, the dashboard and the reference as one FastAPI application."""

import logging
from pathlib import Path
from types import ModuleType

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from observer_core.errors import InputError, ObserverError
from observer_serving.access import Keys, Role
from observer_serving.api import decisions, operations, switches, traces
from observer_serving.api.auth import KeyGuard
from observer_serving.api.door import Door
from observer_serving.api.parts import Parts
from observer_serving.api.schemas import ErrorBody
from observer_serving.receive.status import RefusedError, headers_of

log = logging.getLogger(__name__)

PAGES = Path(__file__).parent / "pages"
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_ERRORS = {code: {"model": ErrorBody} for code in (400, 401, 403, 404, 503)}


def build_api(parts: Parts, keys: Keys) -> Door:
    """The application on the API port."""
    api = FastAPI(
        title="Observer",
        summary="Scores every agent trace and keeps the suspicious ones.",
        version=parts.version,
        docs_url=None,  # FastAPI's own pages load their scripts from a CDN
        redoc_url=None,
        responses=_ERRORS,  # pyright: ignore[reportArgumentType]
    )
    writers: list[tuple[ModuleType, Role]] = [
        (traces, "ingest"), (decisions, "admin"), (switches, "admin"), (operations, "admin"),
    ]  # fmt: skip
    for module, writes in writers:
        guard = KeyGuard(keys, reads="read", writes=writes)
        api.include_router(module.router(parts), dependencies=[Depends(guard)])
    api.include_router(operations.health(parts))
    for path, page in (("/", "dashboard.html"), ("/docs", "docs.html")):
        _serve_page(api, path, (PAGES / page).read_text(encoding="utf-8"))
    _answer_errors(api)
    return Door(api, keys, max_request=parts.max_request, max_values=parts.max_values)


def _serve_page(api: FastAPI, path: str, html: str) -> None:
    @api.get(path, include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse(html, headers=_PAGE_HEADERS)


def _answer_errors(api: FastAPI) -> None:
    """Every error, also the framework's own, as `{"error": one line}`."""

    @api.exception_handler(RefusedError)
    def refused(_: Request, error: RefusedError) -> Response:
        return _error(error.kind.http, error.message, headers_of(error))

    @api.exception_handler(InputError)
    def bad_input(_: Request, error: InputError) -> Response:
        return _error(400, str(error))

    @api.exception_handler(ObserverError)
    def failed(_: Request, error: ObserverError) -> Response:
        return _error(503, str(error), {"Retry-After": "1"})

    @api.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _error(400, f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}")
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        return _error(400, f"field '{where}': {first['msg']}" if where else f"body: {first['msg']}")

    @api.exception_handler(HTTPException)
    def http_error(_: Request, error: HTTPException) -> Response:
        return _error(error.status_code, f"{error.detail}; see /docs", dict(error.headers or {}))

    @api.exception_handler(Exception)
    def fault(_: Request, error: Exception) -> Response:
        log.error("cannot answer a request", exc_info=error)
        return _error(500, "a fault in observer; its log says more")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status, headers=headers)
