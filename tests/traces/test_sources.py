"""Sources of traces and `observer traces convert`."""

import shutil
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from typer.testing import CliRunner

from observer_core.errors import InputError, ObserverError
from observer_core.slices import build_state
from observer_core.traces.jsonl import read_jsonl, write_jsonl
from observer_core.traces.normalise import normalise
from observer_core.traces.otlp import read_otlp_file, write_otlp_file
from observer_core.traces.trace import ToolCall, Trace
from observer_pipeline.cli import build_app
from observer_pipeline.phoenix_traces import span_of
from observer_pipeline.sources import is_otlp_file, load_traces

FIXTURES = Path(__file__).parent / "fixtures"
REACT = Path(__file__).parents[3] / "shared" / "data" / "agent_traces" / "hotpotqa_react.jsonl"
TRACES = [
    Trace("Which river?", "The Rhine.", trace_id="11" * 16, label="correct", tool_calls=[ToolCall("search", {"q": 1}, "ok", "x")]),
    Trace('What is "resourceSpans"?', "OTLP.", trace_id="22" * 16, label="wrong", evidence=["a", "b"]),
]  # fmt: skip


def _convert(*args):
    return CliRunner().invoke(build_app(), ["traces", "convert", *map(str, args)], catch_exceptions=False)


@pytest.mark.parametrize("name", ["spans.json", "spans.pb"])
def test_jsonl_to_otlp_and_back(tmp_path, name):
    write_jsonl(tmp_path / "in.jsonl", TRACES)
    out = _convert(tmp_path / "in.jsonl", tmp_path / name, "--project", "p").output
    assert out == f"2 traces written to {tmp_path / name} (OTLP, 2 labels left out)\n"
    assert _convert(tmp_path / name, tmp_path / "out.jsonl").exit_code == 0
    for before, after in zip(TRACES, read_jsonl(tmp_path / "out.jsonl"), strict=True):
        assert after.label is None
        assert after.trace_id == before.trace_id
        assert build_state(after, {"format": "v1"}).text == build_state(before, {"format": "v1"}).text


def test_a_trace_that_speaks_of_otlp_is_no_otlp(tmp_path):
    write_jsonl(tmp_path / "traces.jsonl", TRACES[::-1])
    assert not is_otlp_file(tmp_path / "traces.jsonl")
    assert is_otlp_file(FIXTURES / "adk_schema1.json")


def test_a_trace_whose_spans_lie_in_several_files_is_one_trace(tmp_path):
    [request] = read_otlp_file(FIXTURES / "adk_openinference_schema1.json")
    for index, scope_spans in enumerate(request.resource_spans[0].scope_spans):
        part = type(request)()
        part.resource_spans.add(resource=request.resource_spans[0].resource).scope_spans.append(scope_spans)
        write_otlp_file(tmp_path / "deep" / f"{index}.{'pb' if index else 'jsonl'}", [part])
    write_jsonl(tmp_path / "labeled.jsonl", TRACES)
    (tmp_path / "notes.txt").write_text("no traces")
    loaded = load_traces(str(tmp_path))
    assert len(loaded) == 3
    whole = load_traces(str(FIXTURES / "adk_openinference_schema1.json"))
    assert loaded[2] == whole[0]


def test_several_traces_in_one_request_are_told_apart(tmp_path):
    merged = read_otlp_file(FIXTURES / "adk_openinference_schema1.json")[0]
    [other] = read_otlp_file(FIXTURES / "adk_openinference_schema2.json")
    merged.resource_spans[0].scope_spans[0].spans.extend(other.resource_spans[0].scope_spans[0].spans)
    merged.resource_spans[0].scope_spans[1].spans.extend(other.resource_spans[0].scope_spans[1].spans)
    write_otlp_file(tmp_path / "both.pb", [merged])
    want = [load_traces(str(FIXTURES / f"adk_openinference_schema{n}.json"))[0] for n in (1, 2)]
    loaded = load_traces(str(tmp_path / "both.pb"))
    assert sorted(loaded, key=lambda t: t.steps or 0) == sorted(want, key=lambda t: t.steps or 0)


def test_bad_sources_say_what_is_wrong(tmp_path):
    good, bad = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_jsonl(good, TRACES)
    bad.write_text('{"question": 3, "final_answer": ""}\n')
    with pytest.raises(InputError, match=r"b\.jsonl:1: field 'question'.*2 traces were usable.*--skip-invalid"):
        load_traces(str(tmp_path))
    assert len(load_traces(str(tmp_path), skip_invalid=True)) == 2
    with pytest.raises(InputError, match="usable"):
        load_traces(str(bad), skip_invalid=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no trace files"):
        load_traces(str(tmp_path / "empty"))
    with pytest.raises(InputError, match="cannot read"):
        load_traces(str(tmp_path / "missing.jsonl"))
    with pytest.raises(InputError, match="phoenix://host:port/project"):
        load_traces("phoenix://127.0.0.1:6006")


def test_a_phoenix_that_is_not_there_is_a_failed_run():
    with pytest.raises(ObserverError, match=r"no answer from http://127\.0\.0\.1:1") as caught:
        load_traces("phoenix://127.0.0.1:1/p")
    assert caught.value.exit_code == 1


def test_a_failed_conversion_leaves_nothing(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(InputError):
        _convert(tmp_path / "bad.jsonl", tmp_path / "out.json")
    with pytest.raises(InputError, match="cannot write to"):
        _convert(FIXTURES, "s3://bucket/traces.jsonl")
    with pytest.raises(ObserverError, match="no answer from"):
        _convert(FIXTURES, "phoenix://127.0.0.1:1/p")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.skipif(not REACT.exists(), reason="needs ../shared/data/agent_traces")
def test_real_agent_traces_keep_their_state_through_otlp(tmp_path):
    shutil.copy(REACT, tmp_path / "react.jsonl")
    assert _convert(tmp_path / "react.jsonl", tmp_path / "react.pb").exit_code == 0
    before, after = load_traces(str(REACT)), load_traces(str(tmp_path / "react.pb"))
    states = [[build_state(trace, {"format": "v1"}).text for trace in traces] for traces in (before, after)]
    assert len(before) == 1224
    assert states[0] == states[1]


def test_phoenix_rows_become_spans_again():
    row = {
        "name": "lookup", "span_kind": "TOOL", "parent_id": "013fa249bb88e687", "status_code": "ERROR",
        "status_message": "gone", "context": {"trace_id": "006d18f3b221426c983803700feb3626", "span_id": "8e09e07f723f2bfe"},
        "start_time": "2026-11-30T14:59:19.344049+00:00", "end_time": "2026-11-30T14:59:20+00:00",
        "attributes": {"tool.name": "lookup", "n": 1, "x": 0.5, "yes": True, "tags": ["a", "b"], "none": None},
        "events": [{"name": "exception", "timestamp": "2026-11-30T14:59:19.5+00:00", "attributes": {"exception.message": "m"}}],
    }  # fmt: skip
    span = span_of(row)
    assert span.start_time_unix_nano == 1796050759344049000
    assert span.end_time_unix_nano - span.start_time_unix_nano == 655951000
    assert (span.status.code, span.status.message) == (2, "gone")
    assert span.events[0].attributes[0].value.string_value == "m"
    attributes = {a.key: a.value for a in span.attributes}
    assert attributes["openinference.span.kind"].string_value == "TOOL"
    assert attributes["yes"].WhichOneof("value") == "bool_value"
    assert [value.string_value for value in attributes["tags"].array_value.values] == ["a", "b"]
    assert attributes["none"].WhichOneof("value") is None
    assert span.dropped_attributes_count == 0


def test_a_model_call_whose_kind_was_dropped_is_one_through_phoenix_too():
    """The SDK keeps 128 attributes; a long chat's messages drive out the first, which says that it is a model call."""
    messages = {f"llm.input_messages.{i}.message.role": "user" for i in range(126)}
    messages |= {"llm.output_messages.0.message.role": "model", "llm.output_messages.0.message.content": "x"}
    row = {
        "name": "call_llm", "span_kind": "UNKNOWN", "parent_id": None, "status_code": "OK", "attributes": messages,
        "context": {"trace_id": "006d18f3b221426c983803700feb3626", "span_id": "8e09e07f723f2bfe"},
        "start_time": "2026-11-30T14:59:19.344049+00:00", "end_time": "2026-11-30T14:59:20+00:00",
    }  # fmt: skip
    group = ResourceSpans()
    group.scope_spans.add().spans.append(span_of(row))
    assert normalise([group]).trace.steps == 1
