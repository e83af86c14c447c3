"""Each fault changes the run as claimed, is written into the ledger, and leaves no word of itself in the spans."""

import random
import re
from collections import Counter

import pytest
from agent_runs import read_back, run

from observer_core.errors import InputError
from observer_core.traces.labels import gold_label
from observer_pipeline.agent.faults import FAULTS, SEED4_RATES, FaultPlan
from observer_pipeline.agent.hotpot import read_hotpot
from observer_pipeline.agent.world import generate_world

QUESTIONS = list(generate_world(14, seed=31))


def seeded(kind: str, spans):
    """(question, injection, trace, ledger entry, normalised spans) of runs with this fault."""
    for question in QUESTIONS:
        injection = FAULTS[kind](question, random.Random(question.qid))
        if injection is None:
            continue
        before = len(spans())
        trace, entry = run(question, injection)
        assert (trace.failure_type, entry.fault, entry.trace_id) == (kind, kind, trace.trace_id)
        assert entry.details == injection.details
        yield question, injection, trace, read_back(spans()[before:])


def test_contradiction_shows_the_false_value_in_place_of_the_true_one(spans) -> None:
    shown = 0
    for question, injection, trace, _ in seeded("contradiction", spans):
        title, true, false = (injection.details[key] for key in ("title", "true", "false"))
        original = next(p.text for p in question.paragraphs if p.title == title)
        assert true in original
        for text in trace.evidence:
            if text.startswith(f"{title}: "):
                shown += 1
                assert false in text
                assert text != f"{title}: {original}"
    assert shown >= 8


def test_missing_evidence_is_never_found(spans) -> None:
    for question, injection, trace, _ in seeded("missing_evidence", spans):
        (title,) = injection.withheld
        assert title in question.supporting_titles
        assert not any(text.startswith(f"{title}: ") for text in trace.evidence)


def test_early_stop_answers_after_too_few_calls(spans) -> None:
    seen = Counter()
    for question, injection, trace, _ in seeded("early_stop", spans):
        assert len(trace.tool_calls) <= injection.details["after"] < len(question.supporting_titles)
        assert trace.stop_reason in ("answered", "no_answer")
        seen[len(trace.tool_calls)] += 1
    assert set(seen) == {0, 1}


def test_weak_model_is_another_model_under_the_same_name(spans) -> None:
    differs = 0
    for question, _, trace, read in seeded("weak_model", spans):
        natural, _ = run(question)
        assert (trace.model, natural.model, read.trace.model) == ("offline-weak", "offline", "offline")
        differs += [c.args for c in trace.tool_calls] != [c.args for c in natural.tool_calls]
    assert differs >= 4


def test_no_span_tells_of_fault_or_label(spans) -> None:
    words = (*FAULTS, "weak", "fault", "inject", "ledger", "gold", "label", "withheld", "altered", "world-31")
    shapes: dict[str, set[tuple]] = {}
    for kind in (None, *FAULTS):
        for question in QUESTIONS:
            before = len(spans())
            run(question, FAULTS[kind](question, random.Random(question.qid)) if kind else None)
            for span in spans()[before:]:
                everything = (
                    f"{span.name} {dict(span.attributes)} {dict(span.resource.attributes)} {span.events}".lower()
                )
                everything = everything.replace('"labels"', "")  # of the request to the model, ADK's own
                assert not [word for word in words if re.search(rf"\b{word}\b", everything)]
                if span.name == "invocation [observer_agent]":
                    shapes.setdefault(str(kind), set()).add(tuple(span.attributes))
                    assert set(span.attributes) == {
                        "input.value", "input.mime_type", "output.value", "output.mime_type",
                        "openinference.span.kind", "session.id", "user.id",
                    }  # fmt: skip
    assert len({frozenset(keys) for keys in shapes.values()}) == 1  # same attributes in the same order


def test_a_seeded_fault_that_ended_right_is_labeled_correct(spans) -> None:
    labels = Counter()
    for kind in FAULTS:
        for question, _, trace, _ in seeded(kind, spans):
            assert trace.label == gold_label(trace.extra["cleaned_answer"], question.answer, question.aliases).label
            labels[trace.label] += 1
    assert labels["correct"] >= 3
    assert labels["wrong"] > labels["correct"]


def test_a_plan_draws_its_rates_and_always_the_same() -> None:
    plan = FaultPlan.parse("seed4", seed=9)
    questions = list(generate_world(1500, seed=2))
    drawn = [plan.inject(question) for question in questions]
    assert drawn == [FaultPlan.parse("seed4", seed=9).inject(question) for question in questions]
    counts = Counter(injection.kind for injection in drawn if injection)
    for kind, rate in SEED4_RATES.items():
        assert 0.7 * rate < counts[kind] / 1500 < 1.3 * rate
    assert all(FaultPlan.parse("natural").inject(q) is None for q in QUESTIONS)


def test_faults_find_their_place_in_real_questions(shared_data) -> None:
    questions = read_hotpot(shared_data / "hotpotqa/hotpotqa_300_distractor.jsonl")
    for kind in FAULTS:
        made = [FAULTS[kind](question, random.Random(1)) for question in questions]
        assert sum(injection is not None for injection in made) > 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("faults: [{kind: gremlins, rate: 0.1}]", "unknown fault 'gremlins'"),
        ("faults: [{kind: early_stop, rate: 2}]", "between 0 and 1"),
        ("faults: [{kind: early_stop, rate: often}]", "between 0 and 1"),
        ("faults: [{kind: early_stop, rate: 0.6}, {kind: weak_model, rate: 0.6}]", "may not exceed 1"),
        ("faults: [{kind: early_stop}]", "faults[0] needs exactly"),
        (
            "faults: [{kind: early_stop, rate: 0.1}, {kind: early_stop, rate: 0.1}]",
            "faults[1] needs exactly a new kind",
        ),
        ("early_stop: 0.1", "is not a fault plan"),
        ("seed: x\nfaults: []", "seed"),
        ("a: [", "is not YAML"),
    ],
)
def test_unusable_plans_say_why(tmp_path, text: str, says: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        FaultPlan.parse(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_from_yaml_and_an_unknown_name(tmp_path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("seed: 7\nfaults: [{kind: early_stop, rate: 0.25}]\n", encoding="utf-8")
    assert FaultPlan.parse(str(path), seed=1) == FaultPlan({"early_stop": 0.25}, 7)
    with pytest.raises(InputError, match="natural, seed4 or a YAML file"):
        FaultPlan.parse("seed5")
