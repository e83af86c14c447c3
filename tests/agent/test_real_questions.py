"""All real questions over their whole corpus: nothing crashes, and every trace reads back from its own spans."""

import time
from pathlib import Path

import httpx
import pytest

from observer_core.traces.jsonl import read_jsonl
from observer_core.traces.otlp import read_otlp_file
from observer_core.traces.trace import Trace
from observer_pipeline.agent.faults import FAULTS, FaultPlan
from observer_pipeline.agent.generate import SPANS_FILE, TRACES_FILE, GenerateOptions, generate_into
from observer_pipeline.phoenix_traces import send_to_project
from observer_pipeline.sources import load_traces

SAME = ("question", "tool_calls", "evidence", "final_answer", "steps")
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def batch(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real") / "out"
    options = GenerateOptions(
        1251,
        faults=FaultPlan.parse("all", seed=3),
        workers=2,
        source=str(shared_data / "hotpotqa/questions.jsonl"),
        whole_corpus=True,
    )
    generate_into(out, options, spans=True)
    return out


def differences(wanted: list[Trace], got: dict[str, Trace]) -> list[tuple[str, str]]:
    return [
        (str(trace.trace_id), name)
        for trace in wanted
        for name in SAME
        if getattr(got[str(trace.trace_id)], name) != getattr(trace, name)
    ]


def test_every_question_runs_and_every_trace_reads_back_from_its_spans(batch: Path) -> None:
    rows = read_jsonl(batch / TRACES_FILE)
    assert len(rows) == len({row.qid for row in rows}) == 1251
    assert {row.failure_type for row in rows} == {None, *FAULTS}
    assert {row.label for row in rows} == {"correct", "partial", "wrong"}
    got = {str(trace.trace_id): trace for trace in load_traces(str(batch / SPANS_FILE))}
    assert got.keys() == {row.trace_id for row in rows}
    assert differences(rows, got) == []


def test_they_read_back_through_a_real_phoenix(batch: Path, phoenix_url: str) -> None:
    rows = read_jsonl(batch / TRACES_FILE)
    requests = read_otlp_file(batch / SPANS_FILE)
    project = phoenix_url.replace("http://", "phoenix://") + "/real-questions"
    sent = send_to_project(project, requests)
    assert sent == sum(len(s.spans) for r in requests for g in r.resource_spans for s in g.scope_spans)
    # Phoenix accepts before it has stored.
    deadline = time.monotonic() + 1200
    while (stored := spans_stored(phoenix_url, "real-questions")) < sent:
        assert time.monotonic() < deadline, (stored, sent)
        time.sleep(2)
    got = {str(trace.trace_id): trace for trace in load_traces(project)}
    assert got.keys() == {str(row.trace_id) for row in rows}
    assert differences(rows, got) == []


def spans_stored(url: str, project: str) -> int:
    query = {"query": "{projects {edges {node {name recordCount}}}}"}
    found = httpx.post(f"{url}/graphql", json=query, timeout=60).raise_for_status().json()
    nodes = [edge["node"] for edge in found["data"]["projects"]["edges"]]
    return sum(node["recordCount"] for node in nodes if node["name"] == project)
