"""Labeled traces: what is read is what was written, and every bad line is named."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observer_core.errors import InputError
from observer_core.traces.jsonl import read_jsonl, scan_jsonl, write_jsonl
from observer_core.traces.splits import normalise_question, split_of, split_of_question
from observer_core.traces.trace import Trace

FROZEN = ["test", "train", "calibration", "validation", "test", "test"]
GOOD = {"question": "q", "final_answer": "a"}
REAL = Path(__file__).parents[3] / "shared/data/agent_traces/hotpotqa_react.jsonl"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
value = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
                     lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=5)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {"question": text, "final_answer": text},
        optional={
            "trace_id": text,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"name": text}, optional={"args": value, "status": value, "result_preview": text, "x": value}
                ),
                max_size=3,
            ),
            "evidence": st.lists(text, max_size=3),
            "label": st.sampled_from(["wrong", "partial", "correct"]),
            "em": st.booleans(),
            "f1": st.floats(0, 1),
            "unknown": value,
        },
    )
)
def test_reading_and_writing_keep_everything(obj: dict):
    out = Trace.from_json(obj).to_json()
    assert {"tool_calls": [], "evidence": []} | obj == out


def test_bad_lines_are_named_and_counted(tmp_path: Path):
    file = tmp_path / "t.jsonl"
    lines = [
        json.dumps(GOOD),
        "",
        "{oops",
        json.dumps({"question": "q"}),
        json.dumps(GOOD | {"label": "bad"}),
        json.dumps(GOOD),
    ]
    file.write_text("\n".join(lines))
    traces, problems = scan_jsonl(file)
    assert len(traces) == 2
    assert [(p.line, p.problem.split()[0]) for p in problems] == [(3, "not"), (4, "field"), (5, "field")]
    with pytest.raises(InputError, match=r"t\.jsonl:3: not JSON.*and 2 more bad lines.*2 of 5 rows were usable"):
        read_jsonl(file)
    assert len(read_jsonl(file, skip_invalid=True)) == 2


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x00\x01"])
def test_a_file_without_traces_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "t.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"t\.jsonl"):
        read_jsonl(file, skip_invalid=True)
    with pytest.raises(InputError, match="cannot read"):
        read_jsonl(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("question", None), ("label", "WRONG"), ("split", "dev"), ("evidence", "text"), ("evidence", [1]), ("f1", float("inf")),
        ("keep_probability", 0), ("keep_probability", 1.5), ("em", "yes"), ("tool_calls", {}), ("trace_id", 7),
    ],
)  # fmt: skip
def test_unusable_values_name_their_field(field: str, bad: object):
    with pytest.raises(InputError, match=field):
        Trace.from_json(GOOD | {field: bad})


def test_splits_are_by_question_and_fixed_for_ever():
    assert normalise_question("  Who\tWAS\n it? ") == normalise_question("who was it?")
    # Frozen: a changed rule would move questions between training and test.
    assert [split_of_question(f"question {i}") for i in range(6)] == FROZEN
    shares = Counter(split_of_question(f"q{i}") for i in range(20_000))
    for split, share in {"train": 0.6, "validation": 0.1, "calibration": 0.1, "test": 0.2}.items():
        assert shares[split] / 20_000 == pytest.approx(share, abs=0.015)
    assert split_of(Trace("q", "a", split="test")) == "test"


def test_real_traces_round_trip(tmp_path: Path):
    if not REAL.exists():
        pytest.skip("the shared data folder is not beside this checkout")
    traces = read_jsonl(REAL)
    assert Counter(t.label for t in traces) == {"wrong": 548, "partial": 181, "correct": 495}
    assert write_jsonl(tmp_path / "copy.jsonl", traces) == 1224
    originals = [json.loads(line) for line in REAL.read_text(encoding="utf-8").splitlines()]
    copies = [json.loads(line) for line in (tmp_path / "copy.jsonl").read_text(encoding="utf-8").splitlines()]
    assert copies == [{k: v for k, v in o.items() if v is not None} for o in originals]
