"""Kept traces in a real Phoenix: spans, decision, annotation, and the way back."""

import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from export_items import DECISION, make_item

from observer_core.errors import InputError
from observer_core.slices import build_state
from observer_core.traces.normalise import normalise
from observer_core.traces.otlp import read_otlp_file
from observer_core.traces.to_spans import trace_to_spans
from observer_core.traces.trace import ToolCall, Trace
from observer_pipeline.sources import load_traces
from observer_serving.export import ExportItem, decorate_root
from observer_serving.export.otlp_http import OtlpHttpExporter

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

FIXTURE = Path(__file__).parents[1] / "traces" / "fixtures" / "adk_openinference_schema1.json"
GIVEN = Trace(
    "Is “Ångström” a unit?", "Yes.", trace_id="5e" * 16, evidence=["first", "second\nline"], model="m",
    tool_calls=[ToolCall("search", {"q": "Å", "n": 10**25, "x": 1e16}, "ok", "found"), ToolCall("lookup", status="not_found")],
)  # fmt: skip


def _export(url, folder, project, *items):
    exporter = OtlpHttpExporter("phoenix", url, folder, project=project)
    for item in items:
        exporter.submit(item)
    exporter.start()
    exporter.stop(60)
    return exporter.stats()


def _poll(read, enough):
    """Phoenix stores what it has acknowledged a moment later."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        found = read()
        if enough(found):
            return found
        time.sleep(0.5)
    raise AssertionError(f"still {found!r}")


def _rows(url, project, what, **params):
    answer = httpx.get(f"{url}/v1/projects/{project}/{what}", params={"limit": 1000} | params, timeout=60)
    return answer.json()["data"] if answer.status_code == 200 else []


def test_a_kept_trace_arrives_whole_and_is_read_back_equal(phoenix_url, tmp_path):
    recorded = [group for request in read_otlp_file(FIXTURE) for group in request.resource_spans]
    read = normalise(recorded)
    first = replace(DECISION, trace_id=read.trace.trace_id or "", spans=read.spans, keep_probability=0.25)
    given = trace_to_spans(GIVEN, project="elsewhere", now_ns=time.time_ns())
    second = replace(DECISION, trace_id=GIVEN.trace_id or "", spans=3)
    stats = _export(
        phoenix_url, tmp_path / "q", "round-trip",
        ExportItem(first, decorate_root(recorded, read.root_span_id, first)),
        ExportItem(second, decorate_root([given], given.scope_spans[0].spans[0].span_id, second)),
    )  # fmt: skip
    assert (stats.exported_traces, stats.annotations, stats.queued_items, stats.retries) == (2, 2, 0, 0)
    rows = _poll(lambda: _rows(phoenix_url, "round-trip", "spans"), lambda rows: len(rows) == read.spans + 3)

    roots = {row["context"]["trace_id"]: row["attributes"] for row in rows if row["parent_id"] is None}
    for decision in (first, second):
        attributes = roots[decision.trace_id]
        for key, value in decision.span_attributes().items():
            assert attributes[key] == value, key
        assert attributes["trace.evaluations.0.evaluation.score"] == decision.p_wrong
        annotations = _poll(
            lambda: _rows(phoenix_url, "round-trip", "trace_annotations", trace_ids=[decision.trace_id]),  # noqa: B023
            lambda found: len(found) == 1,
        )
        assert annotations[0]["name"] == "observer.p_wrong"
        assert annotations[0]["annotator_kind"] == "CODE"
        assert annotations[0]["identifier"] == "observer:7"
        assert annotations[0]["result"] == {"score": 0.75, "label": "score", "explanation": None}

    source = phoenix_url.replace("http://", "phoenix://") + "/round-trip"
    traces = {trace.trace_id: trace for trace in load_traces(source)}
    for want in (read.trace, GIVEN):
        back = traces[want.trace_id]
        assert build_state(back, {"format": "v1"}).text == build_state(want, {"format": "v1"}).text
        assert back.model == want.model
        assert [call.result_preview for call in back.tool_calls] == [call.result_preview for call in want.tool_calls]
    assert traces[read.trace.trace_id].keep_probability == 0.25
    assert {trace.label for trace in traces.values()} == {None}

    verdict = {"trace_id": second.trace_id, "name": "correctness", "annotator_kind": "HUMAN",
               "identifier": "reviewer", "result": {"label": "partial"}}  # fmt: skip
    posted = httpx.post(f"{phoenix_url}/v1/trace_annotations?sync=true", json={"data": [verdict]}, timeout=60)
    assert posted.status_code == 200
    labels = {t.trace_id: (t.label, t.label_source, t.annotator) for t in load_traces(source)}
    assert labels == {first.trace_id: (None, None, None), second.trace_id: ("partial", "annotation", "reviewer")}


def test_a_span_that_ends_before_it_starts_is_shown_at_its_start(phoenix_url, tmp_path):
    stats = _export(phoenix_url, tmp_path / "q", "skew", make_item("skewed", ends_early=True))
    assert stats.repaired_spans == 1
    [row] = _poll(lambda: _rows(phoenix_url, "skew", "spans"), bool)
    assert row["start_time"] == row["end_time"]


def test_an_unknown_project_is_bad_input(phoenix_url):
    with pytest.raises(InputError, match="no project 'nowhere'"):
        load_traces(phoenix_url.replace("http://", "phoenix://") + "/nowhere")


def test_the_score_is_a_filter_people_can_use(phoenix_url, tmp_path):
    _export(phoenix_url, tmp_path / "q", "filter", make_item("kept", spans=2))
    rows = _poll(lambda: _rows(phoenix_url, "filter", "spans", attribute="observer.severity:normal"), bool)
    assert [row["parent_id"] for row in rows] == [None]
    assert _rows(phoenix_url, "filter", "spans", attribute="observer.severity:high") == []
