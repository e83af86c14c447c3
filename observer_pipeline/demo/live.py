"""The demo's live part: traffic from the agent, what the service and Phoenix say of it, and the played reviewer."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from observer_core.errors import ObserverError
from observer_core.traces.trace import Trace
from observer_pipeline.resources.phoenix import PhoenixResource
from observer_pipeline.verdicts import ANNOTATION, LABELS

REVIEWER = "demo-reviewer"
_PAGE = 1000
_POLL_S = 1.0
_SAME = 1e-9


def wait_for(what: str, ready: Callable[[], bool], deadline_s: float) -> None:
    """Ask until `ready` says so.

    Raises:
        ObserverError: not within the time; says what was waited for.
    """
    until = time.monotonic() + deadline_s
    while not ready():
        if time.monotonic() > until:
            raise ObserverError(f"waited {deadline_s:.0f} s in vain for {what}; see the logs under OBSERVER_HOME/logs")
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class ServiceApi:
    """The JSON API of the service."""

    url: str

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        response = httpx.get(self.url + path, params=params, timeout=30)
        response.raise_for_status()
        return response.json()

    def set_policy(self, policy: Mapping[str, Any]) -> None:
        httpx.put(f"{self.url}/v1/policy", json=dict(policy), timeout=30).raise_for_status()

    def score(self, trace: Trace) -> dict[str, Any]:
        """A synchronous decision about a trace."""
        response = httpx.post(f"{self.url}/v1/traces:score", json=trace.to_json(), timeout=60)
        response.raise_for_status()
        return response.json()

    def decisions(self, trace_ids: Sequence[str], *, since: str) -> dict[str, list[dict[str, Any]]]:
        """The decisions about these traces by trace id: a list each, so that a second decision would show."""
        found: dict[str, list[dict[str, Any]]] = {trace_id: [] for trace_id in trace_ids}
        cursor: dict[str, str] = {}
        while True:
            page = self.get("/v1/decisions", since=since, limit=_PAGE, **cursor)
            for decision in page["decisions"]:
                if decision["trace_id"] in found:
                    found[decision["trace_id"]].append(decision)
            if not page["next_cursor"]:
                return found
            cursor = {"cursor": page["next_cursor"]}


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What Phoenix holds of the demo's live traces."""

    stored: dict[str, dict[str, Any]]  # trace id → root span
    missing: list[str]  # kept, but not in Phoenix
    unwanted: list[str]  # dropped, but in Phoenix
    different: list[str]  # in Phoenix with another score

    @property
    def complete(self) -> bool:
        return not self.missing


def read_back(phoenix: PhoenixResource, decisions: Mapping[str, Mapping[str, Any]]) -> ReadBack:
    """Compare Phoenix with the decisions (trace id → decision record)."""
    roots = {span["context"]["trace_id"]: span for span in phoenix.root_spans()}
    stored = {trace_id: roots[trace_id] for trace_id in decisions if trace_id in roots}
    kept = {trace_id for trace_id, decision in decisions.items() if decision["decision"] == "keep"}
    different = [
        trace_id
        for trace_id in kept & stored.keys()
        if abs(stored[trace_id]["attributes"].get("observer.p_wrong", -1.0) - decisions[trace_id]["p_wrong"]) > _SAME
    ]
    return ReadBack(stored, sorted(kept - stored.keys()), sorted(stored.keys() - kept), sorted(different))


def play_reviewer(phoenix: PhoenixResource, spans: Mapping[str, str], gold: Mapping[str, str]) -> int:
    """Post a verdict on each root span (trace id → span id) as a person would, taken from the gold labels.

    Returns:
        How many verdicts were posted.
    """
    rows = [
        {
            "span_id": span_id,
            "name": ANNOTATION,
            "annotator_kind": "HUMAN",
            "identifier": REVIEWER,
            "result": {
                "label": gold[trace_id],
                "score": LABELS.index(gold[trace_id]) / (len(LABELS) - 1),
                "explanation": "played by observer demo from the gold label",
            },
        }
        for trace_id, span_id in spans.items()
    ]
    phoenix.annotate_spans(rows, sync=True)
    return len(rows)
