"""State format v1 is byte-exact: each case is a trace and the text the seed system's Python made of it."""

import json
import subprocess
import sys

import pytest

from observer_core.errors import InputError
from observer_core.slices import build_state
from observer_core.traces.jsonl import parse_trace


def state(**fields: object) -> str:
    trace = {"question": "Q", "final_answer": "A"} | fields
    return build_state(parse_trace(json.dumps(trace))).text


def calls_section(*calls: object) -> str:
    return state(tool_calls=list(calls)).split("TOOL CALLS:\n")[1].split("\n\nEVIDENCE:")[0]


def test_four_sections_and_no_trailing_newline():
    assert state() == "USER QUESTION:\nQ\n\nTOOL CALLS:\n(none)\n\nEVIDENCE:\n(none)\n\nFINAL ANSWER:\nA"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ({"name": "s"}, "1. s('') -> ok"),
        ({"name": "s", "args": None, "status": None}, "1. s(None) -> None"),
        (
            {"name": "s", "args": {"q": "it's", "n": [True, False, None]}},
            "1. s({'q': \"it's\", 'n': [True, False, None]}) -> ok",
        ),
        ({"name": "s", "args": {"q": "both ' and \""}}, "1. s({'q': 'both \\' and \"'}) -> ok"),
        ({"name": "s", "args": [1e16, 1e-05, 0.1, 1.5e300, -0.0]}, "1. s([1e+16, 1e-05, 0.1, 1.5e+300, -0.0]) -> ok"),
        ({"name": "s", "args": 12345678901234567890123}, "1. s(12345678901234567890123) -> ok"),
        ({"name": "s", "args": "Zürich\u200b\n\t\u00a0\U0001f600"}, "1. s('Zürich\\u200b\\n\\t\\xa0😀') -> ok"),
        ({"name": "s", "args": {}, "status": "error"}, "1. s({}) -> error"),
        ({"name": "s", "args": [], "status": 404}, "1. s([]) -> 404"),
    ],
)
def test_tool_call_is_python_repr(call: dict, line: str):
    assert calls_section(call) == line


def test_calls_are_numbered_and_null_lists_are_empty():
    assert calls_section({"name": "a"}, {"name": "b"}) == "1. a('') -> ok\n2. b('') -> ok"
    assert "(none)" in state(tool_calls=None, evidence=None)


def test_evidence_is_three_items_cut_by_code_points():
    long = "𝄞" * 1600
    text = state(evidence=[long, "", "c", "d"])
    assert f"EVIDENCE:\n[1] {'𝄞' * 1500}\n[2] \n[3] c\n\nFINAL" in text
    assert build_state(parse_trace(json.dumps({"question": "Q", "final_answer": "A", "evidence": [long]}))).truncated


def test_unknown_format_is_refused():
    with pytest.raises(InputError, match="unknown state format 'v9'"):
        build_state(parse_trace('{"question": "Q", "final_answer": "A"}'), {"format": "v9"})


@pytest.mark.parametrize(
    ("options", "evidence"), [(["--format", "v1"], "EVIDENCE:\n(none)\n\n"), ([], ""), (["--max-tokens", "160"], "")]
)
def test_command_writes_the_bytes(options: list[str], evidence: str):
    trace = json.dumps({"question": "Wo?\r\n", "final_answer": "Zürich"}).encode()
    command = [sys.executable, "-m", "observer_pipeline.cli", "slice", "-", *options]
    run = subprocess.run(command, input=trace, capture_output=True)
    assert run.stdout == f"USER QUESTION:\nWo?\r\n\n\nTOOL CALLS:\n(none)\n\n{evidence}FINAL ANSWER:\nZürich".encode()
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"question": "q"}', "field 'final_answer' is missing"),
        (b'{"question": "q", "final_answer": 3}', "field 'final_answer' must be a string, not a number"),
        (b'{"question": "q", "final_answer": "\\ud800"}', "surrogate"),
        (b'{"question": "q", "final_answer": "a", "tool_calls": [{}]}', r"tool_calls[0].name"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_command_names_the_field_on_one_line(body: bytes, message: str):
    run = subprocess.run([sys.executable, "-m", "observer_pipeline.cli", "slice", "-"], input=body, capture_output=True)
    assert run.returncode == 2
    assert run.stdout == b""
    assert message in run.stderr.decode()
    assert run.stderr.count(b"\n") == 1
