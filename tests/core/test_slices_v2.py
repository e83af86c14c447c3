"""State format v2: it always fits, keeps question and answer, and of the rest what has to do with them."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observer_core.decision.laya.layout import Layout
from observer_core.decision.laya.presets import find_preset
from observer_core.errors import InputError
from observer_core.questions import default_questions
from observer_core.slices import StateBuilder, v2_spec
from observer_core.slices.v2 import MARK, V2
from observer_core.tokenizer import TextTokens
from observer_core.traces.trace import ToolCall, Trace

MINI = find_preset("laya-mini").folder


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE tokenizer of the kind causal models have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("bytes")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


WORDS = ["the", "lake", "was", "dammed", "in 1931", "by", "Kolt", ".", "[MASK]", "川", "🜛", "<|end|>", "\n"]
texts = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="ab .\n", max_size=900),
    st.lists(st.sampled_from(WORDS), max_size=250).map(" ".join),
)
calls = st.builds(
    ToolCall,
    name=st.text(max_size=12),
    args=st.one_of(texts, st.dictionaries(st.text(max_size=8), st.one_of(texts, st.integers()), max_size=3)),
    status=st.sampled_from(["ok", "error", "timeout: " + "x" * 90, None, 404]),
    result_preview=st.one_of(st.none(), texts),
)
traces = st.builds(
    Trace,
    question=texts,
    final_answer=texts,
    tool_calls=st.lists(calls, max_size=12),
    evidence=st.lists(texts, max_size=12),
)


@pytest.fixture(scope="module")
def both_tokens(byte_level: Path) -> list[TextTokens]:
    return [TextTokens(MINI), TextTokens(byte_level)]


@given(trace=traces, budget=st.integers(150, 400), kind=st.integers(0, 1))
@settings(max_examples=300, deadline=None)
def test_it_never_overflows(both_tokens: list[TextTokens], trace: Trace, budget: int, kind: int) -> None:
    tokens = both_tokens[kind]
    text, truncated = V2(tokens, budget).render(trace)
    assert tokens.count(text) <= budget
    assert truncated or MARK not in text
    asked, answer = tokens.clean(trace.question), tokens.clean(trace.final_answer)
    if tokens.count(asked) + tokens.count(answer) <= budget - 90:
        assert text.startswith(f"USER QUESTION:\n{asked or '(none)'}\n\nTOOL CALLS:\n")
        assert text.endswith(f"\n\nFINAL ANSWER:\n{answer or '(none)'}")


def mini(budget: int = 128) -> StateBuilder:
    return StateBuilder(v2_spec(MINI, budget), MINI)


NOISE = " ".join(f"The committee met on day {i} and adjourned without a vote." for i in range(60))


def test_a_state_that_fits_is_the_whole_trace_told_once() -> None:
    found = "The Rhine is 1,233 km long. It rises in Switzerland."
    trace = Trace(
        question="Which river is longer?",
        final_answer="The Rhine.",
        tool_calls=[
            ToolCall("search", {"query": "length\nof the Rhine", "k": 3}, "ok", found[:28]),
            ToolCall("search", "Rhine", result_preview=found[:28]),
            ToolCall("lookup", {"title": "Elbe"}, "error", "timeout after 5 s"),
            ToolCall("clock", status=404),
        ],
        evidence=[found, "Vltava: a tributary", found],
    )
    state = mini(256).build(trace)
    assert state.text == (
        "USER QUESTION:\nWhich river is longer?\n\n"
        "TOOL CALLS:\n"
        f"1. search(query=length of the Rhine, k=3): {found}\n"
        "2. search(Rhine): as 1\n"
        "3. lookup(title=Elbe) -> error: timeout after 5 s\n"
        "4. clock() -> 404\n\n"
        "EVIDENCE:\n- Vltava: a tributary\n\n"
        "FINAL ANSWER:\nThe Rhine."
    )
    assert not state.truncated


def test_results_that_are_json_around_the_evidence_are_told_as_the_evidence() -> None:
    lake = "Lake Orvane: Lake Orvane lies in the Tessel highlands, near Sallow."
    dam = "Orvane dam: It was dammed in 1931 by the engineer Mira Kolt of Brennick."
    preview = json.dumps({"results": [{"title": t, "text": x} for t, x in (e.split(": ") for e in (lake, dam))]})
    other = "Weather: The sky over Pike Ridge was clear on every night of that summer."
    trace = Trace("Who?", "Kolt", tool_calls=[ToolCall("search", "a", "ok", preview)], evidence=[lake, dam, other])
    text = mini(256).build(trace).text
    assert f"1. search(a): {lake} {dam}\n\nEVIDENCE:\n- {other}\n" in text
    unlike = replace(trace, evidence=[lake])
    text = mini(256).build(unlike).text
    assert "1931" in text  # the evidence does not cover the result


def test_what_bears_on_the_question_is_kept_wherever_it_stands() -> None:
    for place in (0, 30, 59):
        sentences = [f"The committee met on day {i} and adjourned without a vote." for i in range(60)]
        sentences[place] = "Lake Orvane was dammed in 1931 by the engineer Mira Kolt."
        trace = Trace("Who dammed lake Orvane?", "Mira Kolt", evidence=[NOISE, " ".join(sentences), NOISE])
        state = mini().build(trace)
        assert sentences[place] in state.text
        assert state.truncated
        lines = state.text.split("EVIDENCE:\n")[1].split("\n\nFINAL")[0].split("\n")
        (line,) = (line for line in lines if "1931" in line)
        assert line.endswith(MARK) or place == 59


def test_order_is_kept_and_gaps_are_marked() -> None:
    facts = ["Kolt built a dam.", "Orvane is a lake.", "The dam at Orvane is Kolt's."]
    filler = [f"Unrelated remark number {i} about the weather of that year." for i in range(12)]
    item = " ".join([facts[0], *filler, facts[1], *filler, facts[2]])
    text = mini(96).build(Trace("Which dam did Kolt build at lake Orvane?", "the dam", evidence=[item])).text
    at = [text.index(fact) for fact in facts]
    assert at == sorted(at)
    assert all(MARK in text[a:b] for a, b in pairwise(at))


def test_failed_calls_keep_their_error_beside_any_amount_of_evidence() -> None:
    calls = [ToolCall("search", {"q": f"dam {i} Orvane " * 20}, "ok", NOISE) for i in range(30)]
    calls[17] = ToolCall("lookup", {"title": "Orvane"}, "error", "HTTP 503 from the archive; " + NOISE + " giving up")
    trace = Trace("Who dammed Orvane?", "Kolt", tool_calls=calls, evidence=[NOISE] * 5)
    text = mini(160).build(trace).text
    (line,) = (line for line in text.split("\n") if "lookup" in line)
    assert line.startswith("18. lookup(title=Orvane) -> error: HTTP 503 from the archive;")
    assert line.endswith("giving up")
    assert MARK in line


@pytest.mark.parametrize("field", ["question", "final_answer", "both"])
def test_a_question_or_answer_longer_than_the_window_keeps_beginning_and_end(field: str) -> None:
    long = "First of all, " + NOISE + " and so it was Kolt"
    trace = Trace("Who dammed Orvane?", "Mira Kolt", tool_calls=[ToolCall("search")], evidence=[NOISE])
    changed = {"question": long, "final_answer": long} if field == "both" else {field: long}
    text = mini().build(replace(trace, **changed)).text
    asked, answer = text.split("\n\nTOOL CALLS:\n")[0], text.split("FINAL ANSWER:\n")[1]
    for name, part in (("question", asked.removeprefix("USER QUESTION:\n")), ("final_answer", answer)):
        if name in changed:
            assert part.startswith("First of all, The committee")
            assert part.endswith("and so it was Kolt")
            assert MARK in part
        else:
            assert part == getattr(trace, name)
    assert f"TOOL CALLS:\n{MARK}\n\nEVIDENCE:\n{MARK}\n" in text


def test_a_state_does_not_depend_on_what_was_built_before() -> None:
    one, other = Trace("Who?", "Kolt", evidence=[NOISE + " Kolt."]), Trace("Who? " * 99, "x", evidence=[NOISE])
    builder = mini()
    assert builder.build(one) == (builder.build(other), builder.build(one))[1] == mini().build(one)


def test_a_hundred_thousand_characters_and_ten_thousand_calls() -> None:
    trace = Trace("Who?", "Kolt", tool_calls=[ToolCall("s", i) for i in range(10_000)], evidence=["é" * 100_000, NOISE])
    state = mini().build(trace)
    assert TextTokens(MINI).count(state.text) <= 128
    assert state.truncated


def test_rows_of_a_built_state_are_never_cut() -> None:
    questions = default_questions()
    layout = Layout(MINI, max_len=256, head_max_len=192)
    builder = StateBuilder(v2_spec(MINI, layout.state_room(questions)), MINI)
    rows = layout.rows(builder.build(Trace("Who?", "Kolt", evidence=[NOISE] * 9)).text, questions)
    assert not any(row.truncated for row in rows)
    assert max(len(row.ids) for row in rows) > 240


def test_unusable_specs_are_refused(byte_level: Path) -> None:
    for spec, tokenizer, says in (
        ({"format": "v2"}, MINI, "needs its budget"),
        ({"format": "v2", "budget": 128}, None, "counts with a model's tokenizer"),
        (v2_spec(MINI, 128), byte_level, "is not the tokenizer these states were made with"),
        (v2_spec(MINI, 20), MINI, "20 tokens are too few for a state"),
        ({"format": "v2", "budget": 128}, MINI / "nowhere", r"tokenizer\.json is missing"),
    ):
        with pytest.raises(InputError, match=says):
            StateBuilder(spec, tokenizer)
