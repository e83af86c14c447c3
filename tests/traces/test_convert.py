"""`observer traces convert` between labeled JSONL, ReAct logs, OTLP files and Phoenix."""

import contextlib
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from observer_core.errors import InputError
from observer_core.traces.jsonl import read_jsonl, write_jsonl
from observer_core.traces.otlp import read_otlp_file
from observer_core.traces.trace import ABSENT, ToolCall, Trace
from observer_pipeline.cli import build_app
from observer_pipeline.sources import load_traces

FIXTURES = Path(__file__).parent / "fixtures"
REACT = Path(__file__).parents[3] / "shared" / "data" / "agent_traces" / "hotpotqa_react.jsonl"
CALLS = [
    ToolCall("search", {"query": 'the "Rhine"'}, "ok", '{"results": [{"title": "Rhine", "text": "1,233 km."}]}'),
    ToolCall("lookup", {"title": "Elbe"}, "error", '{"error": "no page"}'),
    ToolCall("now", ABSENT, "ok", "2026"),
]
TRACE = Trace(
    "Which river is longer?\nRhine or Elbe?", "The Rhine.", trace_id="11" * 16, tool_calls=CALLS,
    evidence=["Rhine: 1,233 km.", "2026"], label="correct", gold_answer="Rhine", extra={"mine": [1]},
)  # fmt: skip


def convert(*args: object):
    return CliRunner().invoke(build_app(), ["traces", "convert", *map(str, args)], catch_exceptions=False)


@pytest.mark.parametrize("form", ["langchain", "openai"])
def test_json_logs_keep_everything_there_and_back(tmp_path: Path, form: str) -> None:
    write_jsonl(tmp_path / "in.jsonl", [TRACE])
    assert convert(tmp_path / "in.jsonl", tmp_path / "log.jsonl", "--to", form).exit_code == 0
    assert "final_answer" not in (tmp_path / "log.jsonl").read_text()
    assert convert(tmp_path / "log.jsonl", tmp_path / "out.jsonl").exit_code == 0
    assert read_jsonl(tmp_path / "out.jsonl") == [TRACE]


def test_react_text_keeps_the_run_and_says_that_labels_are_lost(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [TRACE, TRACE])
    assert "1 labels" not in convert(tmp_path / "in.jsonl", tmp_path / "log.txt").output
    first, second = load_traces(str(tmp_path / "log.txt"))
    assert first == second == Trace(TRACE.question, TRACE.final_answer, tool_calls=CALLS, evidence=TRACE.evidence)
    assert "2 labels left out" in convert(tmp_path / "in.jsonl", tmp_path / "log.txt").output


def test_the_papers_own_form(tmp_path: Path) -> None:
    (tmp_path / "paper.log").write_text(
        "Question: Which river is longer?\nThought 1: I need the Rhine.\nAction 1: Search[Rhine]\n"
        "Observation 1: The Rhine is\n1,233 km long.\nThought 2: Done.\nAction 2: Finish[Rhine]\n\n"
        "Question: And now?\nThought: Easy.\nAction: lookup\nAction Input: {\"title\": \"Elbe\"}\n"
        "Observation: {\"error\": \"no page\"}\nFinal Answer: I do not\nknow.\n"
    )  # fmt: skip
    first, second = load_traces(str(tmp_path / "paper.log"))
    assert first == Trace(
        "Which river is longer?", "Rhine", evidence=["The Rhine is\n1,233 km long."],
        tool_calls=[ToolCall("Search", "Rhine", "ok", "The Rhine is\n1,233 km long.")],
    )  # fmt: skip
    assert second.final_answer == "I do not\nknow."
    assert (second.tool_calls[0].args, second.tool_calls[0].status) == ({"title": "Elbe"}, "error")
    assert second.evidence == []


@pytest.mark.parametrize(
    "run",
    [
        {"messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": "Old?"},
            {"role": "assistant", "content": "Old."}, {"role": "user", "content": [{"type": "text", "text": "Q?"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "b", "type": "function", "function": {"name": "search", "arguments": "{\"q\": 2}"}},
                {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{\"q\": 1}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "one"}, {"role": "tool", "tool_call_id": "b", "content": "two"},
            {"role": "assistant", "content": "A."}]},
        {"messages": [
            {"type": "human", "content": "Q?"},
            {"type": "ai", "content": "", "tool_calls": [
                {"name": "search", "args": {"q": 2}, "id": "b", "type": "tool_call"},
                {"name": "search", "args": {"q": 1}, "id": "a", "type": "tool_call"}]},
            {"type": "tool", "tool_call_id": "b", "content": "two"}, {"type": "tool", "tool_call_id": "a", "content": "one"},
            {"type": "ai", "content": "A."}]},
        {"messages": [
            {"lc": 1, "type": "constructor", "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Q?"}},
            {"lc": 1, "type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": {"content": "", "tool_calls": [
                {"name": "search", "args": {"q": 2}, "id": "b"}, {"name": "search", "args": {"q": 1}, "id": "a"}]}},
            {"lc": 1, "type": "constructor", "id": ["x", "ToolMessage"], "kwargs": {"content": "two", "tool_call_id": "b"}},
            {"lc": 1, "type": "constructor", "id": ["x", "ToolMessage"], "kwargs": {"content": "one", "tool_call_id": "a"}},
            {"lc": 1, "type": "constructor", "id": ["x", "AIMessage"], "kwargs": {"content": "A."}}]},
        {"input": {"input": "Q?"}, "output": {"output": "A."}, "intermediate_steps": [
            [{"tool": "search", "tool_input": {"q": 2}, "log": ""}, "two"], [["search", {"q": 1}, "log"], "one"]]},
        {"question": "Q?", "answer": "A.", "intermediate_steps": [
            [{"lc": 1, "kwargs": {"tool": "search", "tool_input": "{\"q\": 2}"}}, "two"],
            [{"tool": "search", "tool_input": {"q": 1}}, "one"]]},
    ],
    ids=["openai", "langgraph", "langchain dump", "steps", "dumped steps"],
)  # fmt: skip
def test_logs_as_their_makers_write_them(tmp_path: Path, run: dict) -> None:
    calls = [ToolCall("search", {"q": 2}, "ok", "two"), ToolCall("search", {"q": 1}, "ok", "one")]
    expected = [Trace("Q?", "A.", tool_calls=calls, evidence=["two", "one"], label="wrong")]
    labeled = run | {"label": "wrong"}
    (tmp_path / "lines.jsonl").write_text(json.dumps(labeled) + "\n")
    (tmp_path / "list.json").write_text(json.dumps([labeled], indent=2))
    (tmp_path / "one.json").write_text(json.dumps(labeled, indent=2))
    for name in ("lines.jsonl", "list.json", "one.json"):
        assert load_traces(str(tmp_path / name)) == expected, name


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"intermediate_steps": [["x"]]}', "a.jsonl:1: field 'intermediate_steps[0]' must be a pair"),
        ("a.jsonl", '{"intermediate_steps": [[{}, "x"]]}', "must be an action with its tool"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": "x"}]}', "has no message of the user"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}], "label": "bad"}', "field 'label' must be one of"),
        ("a.txt", "hello", "holds no line 'Question: …'"),
        ("a.json", "[1]", "must be a JSON object"),
    ],
)
def test_unusable_logs_say_where_and_what(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        load_traces(str(tmp_path / name))
    assert says in str(caught.value)


def test_spans_go_through_as_they_are(tmp_path: Path) -> None:
    source = FIXTURES / "adk_openinference_schema1.json"
    assert convert(source, tmp_path / "out.pb", "--project", "shop").exit_code == 0
    [before], [after] = read_otlp_file(source), read_otlp_file(tmp_path / "out.pb")
    for old, new in zip(before.resource_spans, after.resource_spans, strict=True):
        assert new.scope_spans == old.scope_spans
        assert {a.key: a.value.string_value for a in new.resource.attributes}["openinference.project.name"] == "shop"


@pytest.mark.skipif(not REACT.exists(), reason="needs ../shared/data/agent_traces")
@pytest.mark.parametrize("form", ["langchain", "openai"])
def test_real_agent_traces_through_logs(tmp_path: Path, form: str) -> None:
    before = load_traces(str(REACT))
    assert convert(REACT, tmp_path / "log.jsonl", "--to", form).exit_code == 0
    after = load_traces(str(tmp_path / "log.jsonl"))
    for call in (call for trace in before for call in trace.tool_calls if call.status != "ok"):
        # Logs know only that a call failed; its word for it (here `not_found`) becomes the error's text.
        call.status, call.result_preview = "error", json.dumps({"error": call.result_preview or call.status})
    assert after == before


@pytest.mark.heavy
def test_to_phoenix_and_back(tmp_path: Path, phoenix_url: str) -> None:
    project = phoenix_url.replace("http://", "phoenix://") + "/converted"
    write_jsonl(tmp_path / "in.jsonl", [TRACE])
    assert "1 labels left out" in convert(tmp_path / "in.jsonl", project).output
    # Phoenix knows a span by its id, whatever the project; the other recording goes to it in tests/export.
    recorded = FIXTURES / "adk_openinference_schema2.json"
    assert convert(recorded, project).exit_code == 0
    wanted = {"11" * 16} | {t.trace_id for t in load_traces(str(recorded))}
    for _ in range(100):  # Phoenix answers before it has stored, and before it knows the project
        with contextlib.suppress(InputError):
            convert(project, tmp_path / "out.jsonl")
        found = {t.trace_id: t for t in read_jsonl(tmp_path / "out.jsonl")} if (tmp_path / "out.jsonl").exists() else {}
        if found.keys() == wanted:
            break
        time.sleep(0.2)
    got = found["11" * 16]
    assert (got.question, got.final_answer, got.evidence) == (TRACE.question, TRACE.final_answer, TRACE.evidence)
    assert [(c.name, c.args, c.status) for c in got.tool_calls] == [(c.name, c.args, c.status) for c in CALLS]
