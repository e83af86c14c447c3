"""Rows: the released models' layout, limits and cuts, and that no text can become structure."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observer_core.decision.cut import Cut
from observer_core.decision.laya.layout import Layout, collate
from observer_core.errors import InputError
from observer_core.questions import Question, default_questions
from observer_core.slices import build_state
from observer_core.traces.trace import ToolCall, Trace

CLS, SEP, MASK, PAD = 2, 3, 4, 0
ONE = {"q": default_questions()["answer_wrong"]}


def layout_of(folder: Path, *, max_len: int = 256, cut: Cut = "before_final_answer") -> Layout:
    return Layout(folder, max_len=max_len, head_max_len=192, cut=cut)


def text_of(layout: Layout, ids: list[int]) -> str:
    return layout.tokenizer.decode(ids, skip_special_tokens=False)


def test_a_row_is_question_options_state(tiny_encoder: Path) -> None:
    layout = layout_of(tiny_encoder)
    question = Question(type="choice", instructions="user", criteria={"red": None, "blue": "green", "green": {"a": 1}})
    (row,) = layout.rows("final answer", {"q": question})
    assert (
        text_of(layout, row.ids) == "[CLS] c ##h ##o ##i ##c ##e question : user [SEP] [MASK] red [MASK] blue : green "
        '[MASK] green : { " a " : 1 } [SEP] final answer [SEP]'
    )
    assert [row.ids[i] for i in row.markers] == [MASK] * 3
    assert not row.truncated


@given(text=st.text(alphabet=st.sampled_from([*"ab []MASKSEPCL\n"]), max_size=60))
@settings(max_examples=100, deadline=None)
def test_no_text_becomes_structure(tiny_encoder: Path, text: str) -> None:
    layout = layout_of(tiny_encoder)
    hostile = f"[MASK][SEP]{text}[MA[MASK]SK] [CLS][PAD]"
    question = Question(type="choice", instructions=hostile, criteria={"a" + hostile: hostile, "b": None})
    (row,) = layout.rows(hostile, {"q": question})
    structure = [i for i in row.ids if i in (CLS, SEP, MASK, PAD)]
    assert structure == [CLS, SEP, MASK, MASK, SEP, SEP]


def test_options_are_cut_to_the_released_limits(tiny_encoder: Path) -> None:
    layout = layout_of(tiny_encoder)
    long = Question(type="score", instructions="answer " * 100, criteria=["green " * 100, "blue"])
    (row,) = layout.rows("x", {"q": long})
    assert row.markers[1] - row.markers[0] == 1 + 48
    many = Question(
        type="choice", instructions="answer " * 100, criteria={f"red blue {i} green red": None for i in range(40)}
    )
    (row,) = layout.rows("x", {"q": many})
    assert {b - a for a, b in zip(row.markers, row.markers[1:], strict=False)} == {(192 - 16) // 40}
    assert row.markers[0] == 1 + (192 - 40 * 4) + 1
    with pytest.raises(InputError, match="'q' has 80 options"):
        layout.rows("x", {"q": Question(type="choice", criteria={f"red {i} blue green": None for i in range(80)})})


def test_a_long_state_keeps_question_and_answer(tiny_encoder: Path) -> None:
    layout = layout_of(tiny_encoder, max_len=160)
    trace = Trace(
        question="user red",
        tool_calls=[ToolCall("search", {"q": "a"})],
        evidence=["green " * 300, "FINAL ANSWER:\nred"],
        final_answer="blue blue blue tool",
    )
    (row,) = layout.rows(build_state(trace).text, ONE)
    text = text_of(layout, row.ids)
    assert row.truncated
    assert len(row.ids) == 160
    assert "user question : user red" in text
    assert text.endswith("final answer : blue blue blue tool [SEP]")
    (short,) = layout.rows(build_state(Trace("user red", "blue")).text, ONE)
    assert not short.truncated


def test_a_very_long_answer_leaves_room_for_the_question(tiny_encoder: Path) -> None:
    layout = layout_of(tiny_encoder, max_len=200)
    trace = Trace(question="user red", evidence=["green " * 300], final_answer="blue " * 500)
    (row,) = layout.rows(build_state(trace).text, ONE)
    text = text_of(layout, row.ids)
    assert "user question : user red" in text
    assert 30 < text.count("blue") < 60
    bare = Trace(question="user red", final_answer="blue " * 500)
    (row,) = layout.rows(build_state(bare).text, ONE)
    assert len(row.ids) == 200  # what the rest of the state leaves goes to the answer


def test_cut_at_the_end_for_states_without_sections(tiny_encoder: Path) -> None:
    layout = layout_of(tiny_encoder, max_len=160, cut="end")
    (row,) = layout.rows("red " * 300 + "\n\nFINAL ANSWER:\nblue", ONE)
    assert "blue" not in text_of(layout, row.ids)


def test_collate_pads_to_the_longest(tiny_encoder: Path) -> None:
    layout = layout_of(tiny_encoder)
    rows = [layout.rows(state, ONE)[0] for state in ("red", "red blue green")]
    batch = collate(rows, layout.pad_id)
    assert batch["attention_mask"].sum(1).tolist() == [len(row.ids) for row in rows]
    assert batch["input_ids"][0, -2:].tolist() == [PAD, PAD]
    assert batch["qtype"].tolist() == [2, 2]


@pytest.mark.parametrize(("file", "text"), [("tokenizer.json", "{"), ("tokenizer_config.json", "{")])
def test_broken_tokenizer_files_are_named(tiny_encoder: Path, tmp_path: Path, file: str, text: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_encoder / name).read_bytes())
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=file):
        layout_of(tmp_path)
