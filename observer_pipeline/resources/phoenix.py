"""Phoenix as a Dagster resource: its client where that reads and writes, REST where the client lacks a method.

Every call has a timeout and every list is read to its end; Phoenix's own limits (10, 100, 1000) cut silently.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import dagster as dg
import httpx

from observer_core.errors import InputError, ObserverError
from observer_pipeline.verdicts import ANNOTATION, LABELS

if TYPE_CHECKING:
    from phoenix.client import Client

_TIMEOUT_S = 60
_IDS_PER_REQUEST = 100  # ids travel in the query string
_PAGE = 1000

CORRECTNESS = {
    "name": ANNOTATION,
    "type": "CATEGORICAL",
    "description": "Is the agent's final answer right for the user's question?",
    "optimization_direction": "MAXIMIZE",
    "values": [{"label": label, "score": score} for label, score in zip(LABELS, (0.0, 0.5, 1.0), strict=True)],
}
"""The scheme people choose from in Phoenix."""

Target = Literal["span", "trace"]


class PhoenixResource(dg.ConfigurableResource):
    """One Phoenix server and the project whose traces people annotate."""

    base_url: str
    project: str
    api_key: str | None = None

    def client(self) -> "Client":
        from phoenix.client import Client

        return Client(base_url=self.base_url, api_key=self.api_key)

    def _http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.Client(base_url=self.base_url, headers=headers, timeout=_TIMEOUT_S)

    def reachable(self) -> bool:
        """Whether the server answers now."""
        try:
            return httpx.get(f"{self.base_url}/healthz", timeout=5).is_success
        except httpx.TransportError:
            return False

    def ensure_annotation_config(self) -> None:
        """Offer `correctness` (wrong, partial, correct) in the UI for our project; does nothing the second time.

        Raises:
            ObserverError: Phoenix refused or does not answer.
        """
        with self._talk() as http:
            if http.get(f"/v1/annotation_configs/{ANNOTATION}").status_code == 404:
                made = http.post("/v1/annotation_configs", json=CORRECTNESS)
                if made.status_code != 409:  # someone else made it meanwhile
                    made.raise_for_status()
            project = self._project_path()
            known = http.get(project)
            if known.status_code == 404:
                http.post("/v1/projects", json={"name": self.project}).raise_for_status()
            http.put(f"{project}/annotation_configs/{ANNOTATION}").raise_for_status()

    def root_spans(self, *, since: datetime | None = None, until: datetime | None = None) -> list[dict[str, Any]]:
        """All root spans of the project that started in the window; none when there is no such project."""
        spans: list[dict[str, Any]] = []
        params: dict[str, Any] = {"parent_id": "null", "limit": _PAGE}
        if since:
            params["start_time"] = since.isoformat()
        if until:
            params["end_time"] = until.isoformat()
        with self._talk() as http:
            for page in _pages(http, f"{self._project_path()}/spans", params):
                spans.extend(page)
        return spans

    def annotations(self, target: Target, ids: Sequence[str], *, name: str = ANNOTATION) -> list[dict[str, Any]]:
        """All annotations called `name` on the given spans or traces, in Phoenix's own rows.

        The client has no reader for trace annotations, so both go through REST. Ids that Phoenix does not know count as
        not annotated.
        """
        rows: list[dict[str, Any]] = []
        path = f"{self._project_path()}/{target}_annotations"
        with self._talk() as http:
            for start in range(0, len(ids), _IDS_PER_REQUEST):
                chunk = list(ids[start : start + _IDS_PER_REQUEST])
                params = {f"{target}_ids": chunk, "include_annotation_names": [name], "limit": _PAGE}
                for page in _pages(http, path, params):
                    rows.extend(page)
        return rows

    def annotate_spans(self, rows: Sequence[Mapping[str, Any]], *, sync: bool = False) -> None:
        """Write span annotations (Phoenix's rows: `span_id`, `name`, `annotator_kind`, `result`, `identifier`).

        With `sync` a span that is not stored yet is an error; otherwise Phoenix keeps trying for ten minutes.
        """
        if any(not row.get("identifier") for row in rows):
            raise InputError("an annotation without an identifier would be overwritten by the next one; give it one")
        try:
            self.client().spans.log_span_annotations(span_annotations=[dict(row) for row in rows], sync=sync)  # pyright: ignore
        except httpx.HTTPError as error:
            raise _unreachable(self.base_url, error) from error

    def annotate_traces(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write trace annotations (Phoenix's rows: `trace_id`, `name`, `annotator_kind`, `result`, `identifier`).

        Raises:
            InputError: a row has no identifier.
            ObserverError: Phoenix refused or does not answer.
        """
        if any(not row.get("identifier") for row in rows):
            raise InputError("an annotation without an identifier would be overwritten by the next one; give it one")
        with self._talk() as http:
            http.post("/v1/trace_annotations", json={"data": [dict(row) for row in rows]}).raise_for_status()

    def trace_url(self, trace_id: str) -> str:
        """Where people see a trace."""
        return f"{self.base_url}/redirects/traces/{trace_id}"

    def _project_path(self) -> str:
        return f"/v1/projects/{quote(self.project, safe='')}"

    def _talk(self) -> "_Session":
        return _Session(self._http(), self.base_url)


class _Session:
    """An HTTP client whose errors become one line that names the server."""

    def __init__(self, http: httpx.Client, base_url: str) -> None:
        self.http = http
        self.base_url = base_url

    def __enter__(self) -> httpx.Client:
        return self.http.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.http.__exit__(kind, error, trace)
        if isinstance(error, httpx.HTTPError):
            raise _unreachable(self.base_url, error) from error


def _unreachable(base_url: str, error: httpx.HTTPError) -> ObserverError:
    if isinstance(error, httpx.HTTPStatusError):
        said = " ".join(error.response.text.split())[:200]
        return ObserverError(
            f"Phoenix at {base_url} answered {error.response.status_code} to {error.request.url.path}: {said}"
        )
    return ObserverError(
        f"Phoenix at {base_url} does not answer ({type(error).__name__}); "
        "start it by 'observer up' or set OBSERVER_PHOENIX_URL"
    )


def _pages(http: httpx.Client, path: str, params: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Every page of a list; a 404 (no such project, none of the ids) is an empty list."""
    cursor: str | None = None
    while True:
        response = http.get(path, params={**params, "cursor": cursor} if cursor else dict(params))
        if response.status_code == 404:
            return
        response.raise_for_status()
        body = response.json()
        yield body["data"]
        cursor = body.get("next_cursor")
        if not cursor:
            return
