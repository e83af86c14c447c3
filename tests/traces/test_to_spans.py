"""A JSON trace written as spans is read back as it was."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observer_core.traces.normalise import normalise
from observer_core.traces.to_spans import trace_to_spans
from observer_core.traces.trace import ABSENT, ToolCall, Trace

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)
CALLS = st.builds(
    ToolCall,
    name=TEXT,
    args=st.one_of(st.just(ABSENT), JSON),
    status=st.one_of(st.just(ABSENT), st.sampled_from(["ok", "error", "not_found"]), JSON),
    result_preview=st.one_of(st.none(), TEXT, JSON.map(json.dumps)),
)
TRACES = st.builds(
    Trace,
    question=st.one_of(TEXT, JSON.map(json.dumps)),
    final_answer=st.one_of(TEXT, JSON.map(json.dumps)),
    trace_id=st.one_of(st.none(), TEXT, st.binary(min_size=16, max_size=16).map(bytes.hex)),
    tool_calls=st.lists(CALLS, max_size=4),
    evidence=st.lists(TEXT, max_size=4),
    latency_ms=st.one_of(st.none(), st.floats(0, 1e7)),
)


@given(TRACES)
@settings(max_examples=200, deadline=None)
def test_spans_give_the_trace_back(trace):
    spans = trace_to_spans(trace, project="demo", now_ns=1_790_000_000 * 10**9)
    read = normalise([spans])
    assert read.trace.question == trace.question
    assert read.trace.final_answer == trace.final_answer
    assert read.trace.evidence == trace.evidence
    assert [(c.name, c.args, c.status, c.result_preview) for c in read.trace.tool_calls] == [
        (c.name, c.args, c.status, c.result_preview) for c in trace.tool_calls
    ]
    assert read.complete
    assert read.project == "demo"


def test_ids_are_stable_and_times_are_those_of_the_run():
    trace = Trace("q", "a", trace_id="AB" * 16, latency_ms=3000.0, tool_calls=[ToolCall("search"), ToolCall("lookup")])
    one = trace_to_spans(trace, project=None, now_ns=10**19)
    assert one == trace_to_spans(trace, project=None, now_ns=10**19)
    root, *tools = one.scope_spans[0].spans
    assert root.trace_id == b"\xab" * 16
    assert root.end_time_unix_nano - root.start_time_unix_nano == 3_000_000_000
    assert [tool.parent_span_id for tool in tools] == [root.span_id] * 2
    assert len({span.span_id for span in (root, *tools)}) == 3
    assert math.isclose(normalise([one]).duration_ms, 3000.0)


@pytest.mark.parametrize("latency_ms", [1e308, -1e308, 3.6e12])
def test_a_run_that_took_longer_than_there_is_time_begins_in_1970(latency_ms: float):
    trace = Trace("q", "a", trace_id="t", latency_ms=latency_ms, tool_calls=[ToolCall("search")])
    root, tool = trace_to_spans(trace, project=None, now_ns=10**18).scope_spans[0].spans
    assert 0 <= root.start_time_unix_nano <= tool.start_time_unix_nano < root.end_time_unix_nano == 10**18


def test_nothing_of_the_label_is_written():
    known = Trace("q", "a", trace_id="t", label="wrong", gold_answer="GOLD", failure_type="early_stop", qid="Q-17")
    blank = Trace("q", "a", trace_id="t")
    assert trace_to_spans(known, project=None, now_ns=10**18) == trace_to_spans(blank, project=None, now_ns=10**18)


def test_any_trace_id_fits_the_wire():
    ids = [trace_to_spans(Trace("q", "a", trace_id=i), project=None, now_ns=10**18).scope_spans[0].spans[0].trace_id
           for i in ("fireact-7", "fireact-7", "0" * 32, None, None)]  # fmt: skip
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    assert all(len(i) == 16 and any(i) for i in ids)
