"""The offline model's policy, driven without ADK, and how it reads."""

import random
from collections import Counter
from dataclasses import replace
from statistics import mean
from typing import get_args

import pytest
from google.genai import types

from observer_core.traces.labels import gold_label
from observer_pipeline.agent.models.offline import conversation
from observer_pipeline.agent.models.reading import BY_NAME, Form, as_size, name_spans, read, understand, values_of
from observer_pipeline.agent.models.solver import Solver
from observer_pipeline.agent.models.temper import Mistake, Skill, Temper
from observer_pipeline.agent.questions import AgentQuestion
from observer_pipeline.agent.runner import Budget, clean_answer
from observer_pipeline.agent.tools import ParagraphIndex, Toolbox
from observer_pipeline.agent.world import generate_world


def solve(question: AgentQuestion, skill: Skill, *, mistake: bool | None = None) -> tuple[str, int]:
    """The answer and the number of tool calls of a run without ADK; with a mistake or without if that is given."""
    rng = random.Random(f"0:{skill}:{question.question}")
    temper = Temper.draw(rng, skill)
    if mistake is not None:
        temper = replace(temper, mistake=rng.choice(get_args(Mistake)) if mistake else None)
    moves = Solver(understand(question.question), temper, rng).moves()
    tools = Toolbox(ParagraphIndex(question.paragraphs), Budget().tool_calls)
    functions = {function.__name__: function for function in tools.functions()}
    try:
        name, args = next(moves)
        while True:
            name, args = moves.send(functions[name](**args))
    except StopIteration as end:
        return end.value, tools.calls


def rates(skill: Skill) -> tuple[Counter[str], dict[bool, list[int]]]:
    """Labels, and the numbers of calls of right and of other runs."""
    labels, calls = Counter(), {True: [], False: []}
    for question in generate_world(400, seed=11):
        answer, used = solve(question, skill)
        label = gold_label(answer, question.answer, question.aliases).label
        labels[label] += 1
        calls[label == "correct"].append(used)
    return labels, calls


def test_natural_mistakes_are_in_the_stated_band_and_the_weak_model_makes_more() -> None:
    strong, calls = rates("strong")
    weak, _ = rates("weak")
    assert 0.20 <= 1 - strong["correct"] / 400 <= 0.40
    assert strong["partial"] >= 4
    assert weak["correct"] < 0.75 * strong["correct"]
    used = [*calls[True], *calls[False]]
    assert sum(count >= 2 for count in used) > 260  # it really works in several steps
    assert max(used) <= Budget().tool_calls + 1


def test_whether_a_run_is_right_hangs_on_its_mistake_and_not_on_the_shape_of_the_question() -> None:
    wrong: dict[str, list[tuple[bool, bool]]] = {}
    for question in generate_world(600, seed=12):
        ask = understand(question.question)
        labels = [
            gold_label(solve(question, "strong", mistake=m)[0], question.answer, question.aliases).label
            for m in (False, True)
        ]
        wrong.setdefault(ask.form, []).append((labels[0] != "correct", labels[1] != "correct"))
    assert set(wrong) == set(get_args(Form))
    for form, found in wrong.items():
        assert mean(without for without, _ in found) < 0.15, form
        assert mean(with_one for _, with_one in found) > 0.8, form


@pytest.mark.parametrize(
    ("question", "anchors", "relations", "form"),
    [
        (
            "What is the birth year of the founder of Prukalm Group?",
            ("Prukalm Group",),
            ["founder", "birth_year"],
            "chain",
        ),
        (
            "How many people live in the town where the architect of Stelis Tower was born?",
            ("Stelis Tower",),
            ["architect", "birthplace", "population"],
            "chain",
        ),
        ("Who is older, Nomon Wordilm or O. Zugurd?", ("Nomon Wordilm", "O. Zugurd"), [], "smaller"),
        ("Which river is longer, the Orsa or the Brin?", ("Orsa", "Brin"), ["river"], "larger"),
        ("Are Velk Hall and Orsa Tower located in the same town?", ("Velk Hall", "Orsa Tower"), ["located"], "same"),
        ("Were Scott Derrickson and Ed Wood of the same nationality?", ("Scott Derrickson", "Ed Wood"), [], "same"),
    ],
)
def test_questions_are_taken_apart(question: str, anchors: tuple[str, ...], relations: list[str], form: str) -> None:
    ask = understand(question)
    assert (ask.anchors, [r.name for r in ask.relations], ask.form) == (anchors, relations, form)


def test_reading_takes_the_value_next_to_the_cue() -> None:
    text = "Ox is a town. It moved from Old Fen to New Fen, where it is based today. Its population is 1,200."
    relation = BY_NAME["headquarters"]
    assert read(text, "Ox", relation) == "New Fen"
    assert values_of(text, "Ox", "name") == ["Old Fen", "New Fen"]
    grown = "Its population changed from 28,232 to 76,541 within a generation."
    assert read(grown, "Ox", BY_NAME["population"]) == "76,541"
    assert read("Ox & Sons is a Velian company active in brewing.", "Ox & Sons", BY_NAME["industry"]) == "brewing"
    assert read(text, "Ox", BY_NAME["length"]) is None


def test_names_dates_and_sizes() -> None:
    assert name_spans("He was born on 4 March 1951 in New Fen to Ada of Velk.") == ["New Fen", "Ada of Velk"]
    assert as_size("4 March 1951") == as_size("March 4, 1951") == (1951, 2, 4)
    assert as_size("12,430") == (12430,)
    assert as_size("unknown") is None


def test_only_the_latest_turn_of_a_conversation_counts() -> None:
    def said(role: str, **part: object) -> types.Content:
        return types.Content(role=role, parts=[types.Part(**part)])  # type: ignore[arg-type]

    result = types.FunctionResponse(name="search", response={"results": []})
    turns = [said("user", text="Old?"), said("user", function_response=result), said("model", text="x")]
    assert conversation([*turns, said("user", text="New?")]) == ("New?", [])
    assert conversation(turns) == ("Old?", [{"results": []}])


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("Tarnholm", "Tarnholm"),
        ("Answer: Tarnholm", "Tarnholm"),
        ("I searched twice.\n\n**Final answer:** Tarnholm.", "Tarnholm"),
        ("The answer is 4 March 1951.", "4 March 1951"),
        ('"Tarnholm"', "Tarnholm"),
        ("I could not find the answer.", "I could not find the answer"),
        ("The Answer", "The Answer"),
        ("", ""),
        ("  \n ", ""),
    ],
)
def test_answers_are_cleaned(raw: str, clean: str) -> None:
    assert clean_answer(raw) == clean
