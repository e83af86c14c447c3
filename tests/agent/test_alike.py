"""How a run looks does not hang on how it ends: calls, evidence, lengths, and the order of its spans."""

import random
from collections import defaultdict
from dataclasses import replace
from statistics import mean
from typing import get_args

import pytest
from agent_runs import run

from observer_core.traces.labels import gold_label
from observer_pipeline.agent.faults import FAULTS, HARMLESS
from observer_pipeline.agent.models.reading import understand
from observer_pipeline.agent.models.solver import Solver
from observer_pipeline.agent.models.temper import Mistake, Temper
from observer_pipeline.agent.runner import Budget
from observer_pipeline.agent.tools import ParagraphIndex, Toolbox
from observer_pipeline.agent.world import generate_world


def looks(question, temper: Temper) -> tuple[int, int, int, bool]:
    """Calls, paragraphs seen, their characters, and whether the answer is right."""
    solver = Solver(understand(question.question), temper, random.Random(question.qid))
    tools = Toolbox(ParagraphIndex(question.paragraphs), Budget().tool_calls)
    functions = {function.__name__: function for function in tools.functions()}
    moves = solver.moves()
    try:
        name, args = next(moves)
        while True:
            name, args = moves.send(functions[name](**args))
    except StopIteration as end:
        right = gold_label(end.value, question.answer, question.aliases).label == "correct"
        return tools.calls, len(solver.pages), sum(len(page.text) for page in solver.pages), right


@pytest.mark.parametrize("mistake", get_args(Mistake))
def test_a_run_with_a_mistake_looks_as_the_same_run_without(mistake: Mistake) -> None:
    pairs = []
    for question in generate_world(250, seed=21):
        temper = Temper.draw(random.Random(question.qid), "strong")
        with_one, without = (looks(question, replace(temper, mistake=one)) for one in (mistake, None))
        if without[3] and not with_one[3]:
            pairs.append((with_one, without))
    assert len(pairs) > 120
    for measure, name in enumerate(("calls", "paragraphs", "characters")):
        wrong, right = (mean(run[measure] for run in runs) for runs in zip(*pairs, strict=True))
        assert wrong == pytest.approx(right, rel=0.06), name


def test_a_paragraph_is_no_longer_for_being_needed() -> None:
    lengths = defaultdict(list)
    for question in generate_world(300, seed=22):
        for page in question.paragraphs:
            lengths[page.title in question.supporting_titles].append(len(page.text))
    assert mean(lengths[True]) == pytest.approx(mean(lengths[False]), rel=0.07)


def test_for_as_many_calls_all_runs_have_the_same_spans_in_the_same_order(spans) -> None:
    """Seeded times are drawn from this order and the seed alone, so they cannot tell what was done to a run."""
    orders = defaultdict(set)
    kinds = [(FAULTS, kind) for kind in FAULTS] + [(HARMLESS, kind) for kind in HARMLESS]
    for question in generate_world(6, seed=23):
        for faults, kind in [(None, ""), *kinds]:
            injection = faults[kind](question, random.Random(question.qid)) if faults else None
            before = len(spans())
            trace, _ = run(question, injection)
            ended = [span.name.split("(")[0].split(" search")[0].split(" lookup")[0] for span in spans()[before:]]
            orders[len(trace.tool_calls)].add(tuple(ended))
    assert len(orders) >= 5
    assert {len(found) for found in orders.values()} == {1}
