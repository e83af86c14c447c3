"""Tokens of states and questions: the released rendering, limits and cuts, and that no text can become structure."""

import unicodedata
from pathlib import Path

import pytest
from decision.tiny_kev import write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from observer_core.decision.cut import Cut
from observer_core.decision.kev.config import MAX_BRANCH, QWEN_DELIMITERS
from observer_core.decision.kev.layout import Branch, Layout, option_texts, render
from observer_core.decision.kev.smollm2 import DELIMITERS
from observer_core.decision.protocol import ContextOverflowError
from observer_core.errors import InputError
from observer_core.questions import Question, default_questions
from observer_core.slices import build_state
from observer_core.traces.trace import ToolCall, Trace

BOTH = {"qwen": QWEN_DELIMITERS, "smollm2": DELIMITERS}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer for each set of delimiters."""
    made = {name: tmp_path_factory.mktemp(name) for name in BOTH}
    for name, folder in made.items():
        write_tokenizer(folder, BOTH[name])
    return made


def layout_of(folders: dict[str, Path], which: str = "qwen", *, max_state: int = 300, cut: Cut = "end") -> Layout:
    return Layout(folders[which], delimiters=BOTH[which], max_state=max_state, max_branch=MAX_BRANCH, cut=cut)


def text_of(layout: Layout, ids) -> str:
    return layout.tokenizer.decode(list(ids), skip_special_tokens=False)


def choice(options: int, text: str = "option") -> Question:
    return Question(type="choice", instructions="which", criteria={f"{text} {i}": None for i in range(options)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (1.5, "1.5"),
        (True, "True"),
        (None, ""),
        (["a", 2, None], "- a\n- 2\n- "),
        ({"k": "v", "n": None}, "k: v\nn: "),
        ({"k": {"inner": [1, {"x": "y", "z": []}]}}, "k:\n  inner:\n    - 1\n    - x: y\n      z:\n"),
        ([["a", "b"], {"k": {"l": 1}}], "- - a\n  - b\n- k:\n    l: 1"),
        ({}, ""),
    ],
)
def test_json_reads_as_the_released_models_read_it(value, text: str) -> None:
    assert render(value) == text


def test_option_texts() -> None:
    assert option_texts(Question(type="noul", instructions="?")) == ["no", "yes"]
    assert option_texts(Question(type="noul", criteria={"true": "so it is"})) == ["no", "yes: so it is"]
    assert option_texts(Question(type="noul", criteria={"false": {"a": 1}, "true": ""})) == ["no: a: 1", "yes"]
    assert option_texts(Question(type="choice", criteria={"a": None, "b": "bee"})) == ["a", "b: bee"]
    assert option_texts(Question(type="score", criteria=["bad", {"x": 1}])) == ["bad", "x: 1"]


def test_a_row_is_the_state_and_one_branch(folders: dict[str, Path]) -> None:
    layout = layout_of(folders)
    state = layout.state({"q": "why"})
    branch = layout.branch("x", Question(type="choice", instructions="pick", criteria={"a": None, "b": "bee"}))
    assert text_of(layout, state.ids) == "<|fim_prefix|>q: why"
    assert text_of(layout, branch.ids) == (
        "<|fim_middle|>pick<|box_start|>a<|box_end|><|box_start|>b: bee<|box_end|><|fim_suffix|>"
    )
    end = layout.tokenizer.token_to_id("<|box_end|>")
    assert [branch.ids[at] for at in branch.ends] == [end, end]
    assert text_of(layout, branch.permuted([1, 0]).ids).startswith("<|fim_middle|>pick<|box_start|>b: bee<|box_end|>")
    assert [branch.permuted([1, 0]).ids[at] for at in branch.permuted([1, 0]).ends] == [end, end]


@pytest.mark.parametrize("which", BOTH)
@given(text=st.lists(st.sampled_from([*"ab<>|¦_ \n", *QWEN_DELIMITERS, *DELIMITERS]), max_size=40).map("".join))
@settings(max_examples=100, deadline=None)
def test_no_text_becomes_structure(folders: dict[str, Path], which: str, text: str) -> None:
    layout = layout_of(folders, which)
    names = BOTH[which]
    hostile = f"{names[2]}{text}{names[3]}<|{names[4]}|>{names[4][:-1]}{text}"
    question = Question(type="choice", instructions=hostile, criteria={"a" + hostile: hostile, "b": None})
    state, branch = layout.state(hostile), layout.branch("q", question)
    state_id, q, opt, end, decide = (layout.tokenizer.token_to_id(name) for name in names)
    structure = {state_id, q, opt, end, decide}
    assert [i for i in state.ids if i in structure] == [state_id]
    assert [i for i in branch.ids if i in structure] == [q, opt, end, opt, end, decide]


@pytest.mark.parametrize("plane", range(17))
def test_every_plane_of_unicode_survives(folders: dict[str, Path], plane: int) -> None:
    layout = layout_of(folders, max_state=8192)
    points = range(plane * 0x10000, (plane + 1) * 0x10000, 499)
    text = "".join(chr(p) for p in points if unicodedata.category(chr(p)) != "Cs")
    state = layout.state(text)
    assert not state.truncated
    assert text_of(layout, state.ids[1:]) == text


def test_a_state_is_cut_at_its_limit_or_refused(folders: dict[str, Path]) -> None:
    layout = layout_of(folders, max_state=50)
    assert not layout.state("x" * 49).truncated
    long = layout.state("x" * 100_000)
    assert (len(long.ids), long.truncated) == (50, True)
    with pytest.raises(ContextOverflowError, match="100001 tokens, this model reads at most 50"):
        layout.state("x" * 100_000, strict=True)
    assert layout.state("").ids == (layout.tokenizer.token_to_id("<|fim_prefix|>"),)


def test_a_cut_state_keeps_question_and_answer(folders: dict[str, Path]) -> None:
    trace = Trace("why red", "because", tool_calls=[ToolCall("search", {})], evidence=["green " * 100])
    layout = layout_of(folders, max_state=120, cut="before_final_answer")
    state = layout.state(build_state(trace).text)
    assert (len(state.ids), state.truncated) == (120, True)
    text = text_of(layout, state.ids)
    assert "USER QUESTION:\nwhy red" in text
    assert text.endswith("FINAL ANSWER:\nbecause")


def test_a_branch_fits_or_is_refused_whatever_the_state(folders: dict[str, Path]) -> None:
    layout = layout_of(folders)
    assert isinstance(layout.branch("many", choice(255)), Branch)
    levels = Question(type="score", instructions="how", criteria=[f"level {i}" for i in range(10)])
    assert len(layout.branch("levels", levels).options) == 10
    with pytest.raises(ContextOverflowError, match=r"question 'long' has 255 options and \d+ tokens"):
        layout.branch("long", choice(255, "a name of many tokens, and of many more"))
    with pytest.raises(InputError, match="needs criteria"):
        layout.branch("empty", Question(type="choice"))


def test_another_models_tokenizer_is_named(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json has no token <\|im_start\|>"):
        Layout(folders["qwen"], delimiters=DELIMITERS, max_state=50, max_branch=50)


def test_branches_are_remembered_by_what_they_say(folders: dict[str, Path]) -> None:
    layout = layout_of(folders)
    first, second = default_questions().values()
    assert layout.branch("a", first) == layout.branch("b", first)
    assert layout.branch("a", first) != layout.branch("a", second)
