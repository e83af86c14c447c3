"""Each fault changes the run as claimed, is written into the ledger, and leaves no word of itself in the spans."""

import random
import re
from collections import Counter
from statistics import mean

import pytest
from agent_runs import read_back, run

from observer_core.errors import InputError
from observer_core.traces.labels import gold_label, normalise_answer
from observer_pipeline.agent.faults import FAULTS, HARMLESS, FaultPlan
from observer_pipeline.agent.faults.plan import SEED4_RATES
from observer_pipeline.agent.faults.registry import AS_OFTEN
from observer_pipeline.agent.faults.values import DATE, kind_of, other_side, slip_of_date, slip_of_number
from observer_pipeline.agent.sources import read_question_file
from observer_pipeline.agent.world import generate_world

QUESTIONS = list(generate_world(14, seed=31))
MANY = list(generate_world(400, seed=32))


def seeded(kind: str, spans, *, harmless: bool = False, questions=QUESTIONS, most: int = 14):
    """(question, injection, trace, normalised spans) of runs with this fault."""
    done = 0
    for question in questions:
        injection = (HARMLESS if harmless else FAULTS)[kind](question, random.Random(question.qid))
        if injection is None:
            continue
        before = len(spans())
        trace, entry = run(question, injection)
        fault = None if harmless else kind
        assert (trace.failure_type, entry.fault, entry.trace_id) == (fault, fault, trace.trace_id)
        assert entry.disturbance == (kind if harmless else None)
        assert entry.details == injection.details
        yield question, injection, trace, read_back(spans()[before:])
        done += 1
        if done == most:
            return


def shown(trace, title: str) -> list[str]:
    return [text.removeprefix(f"{title}: ") for text in trace.evidence if text.startswith(f"{title}: ")]


def original(question, title: str) -> str:
    return next(p.text for p in question.paragraphs if p.title == title)


def test_contradiction_shows_the_false_value_in_place_of_the_true_one(spans) -> None:
    seen = 0
    for question, injection, trace, _ in seeded("contradiction", spans):
        title, true, false = (injection.details[key] for key in ("title", "true", "false"))
        assert true in original(question, title)
        for text in shown(trace, title):
            seen += 1
            assert false in text
            assert text != original(question, title)
    assert seen >= 8


def test_missing_evidence_is_never_found(spans) -> None:
    for question, injection, trace, _ in seeded("missing_evidence", spans):
        title = injection.details["title"]
        assert title in question.supporting_titles
        assert not shown(trace, title)
    found = 0
    for question, injection, trace, _ in seeded("missing_evidence", spans, harmless=True):  # late is not never
        natural, _ = run(question)
        found += bool(shown(trace, injection.details["title"])) and len(trace.tool_calls) > len(natural.tool_calls)
    assert found >= 6


def test_a_stale_copy_comes_from_search_and_the_page_itself_is_fresh(spans) -> None:
    stale = fresh = 0
    for question, injection, trace, _ in seeded("stale_result", spans, questions=MANY, most=40):
        title, false = injection.details["title"], injection.details["false"]
        for call in trace.tool_calls:
            if call.name == "search" and f'"{title}"' in (call.result_preview or ""):
                stale += false in call.result_preview
            elif call.status == "ok" and call.args == {"title": title}:
                fresh += original(question, title)[:60] in call.result_preview
                assert false not in call.result_preview or false in original(question, title)
    assert stale >= 15
    assert fresh >= 2


def test_a_truncated_result_lacks_what_is_needed_and_its_look_alike_has_it(spans) -> None:
    cut = 0
    for question, injection, trace, _ in seeded("truncated_result", spans):
        for text in shown(trace, injection.details["title"]):
            cut += 1
            assert injection.details["lost"] not in text
            assert len(text) < len(original(question, injection.details["title"])) + 20
    assert cut >= 6
    for question, injection, trace, _ in seeded("truncated_result", spans, harmless=True):
        values = [fact.value for fact in question.facts if fact.title == injection.details["title"]]
        for text in shown(trace, injection.details["title"]):
            assert all(value in text for value in values)


@pytest.mark.parametrize("kind", ["tool_error", "tool_timeout"])
def test_broken_tools_stay_broken_and_a_hiccup_passes(spans, kind: str) -> None:
    for _, injection, trace, read in seeded(kind, spans):
        first = injection.details["from_call"]
        assert all(call.status == "error" for call in trace.tool_calls[first:])
        assert read.trace.tool_calls == trace.tool_calls
    recovered = hit = 0
    for _, injection, trace, _ in seeded(kind, spans, harmless=True):
        at = injection.details["call"]
        if len(trace.tool_calls) > at:
            hit += 1
            assert injection.details["message"] in trace.tool_calls[at].result_preview
            recovered += trace.tool_calls[at + 1].args == trace.tool_calls[at].args
    assert recovered == hit >= 8


def test_the_wrong_entity_has_the_right_name_and_other_facts(spans) -> None:
    namesakes = 0
    for question, injection, trace, _ in seeded("wrong_entity", spans):
        title = injection.details["title"]
        name = re.sub(r" \(.*\)$", "", title)
        for text in shown(trace, title):
            namesakes += 1
            assert name in text[: len(name) + 10]
            assert text != original(question, title)
    assert namesakes >= 8


def test_a_swapped_hop_answers_half_way_or_another_question(spans) -> None:
    ways = Counter()
    for question, injection, trace, read in seeded("swapped_hop", spans, questions=MANY, most=40):
        assert read.trace.question == trace.question == question.question  # the misreading shows in no span
        if "answered" in injection.details:
            assert trace.extra["cleaned_answer"] == injection.details["answered"].rstrip(".") != question.answer
        ways[next(iter(injection.details))] += 1
    assert min(ways["answered"], ways["followed"]) >= 5


@pytest.mark.parametrize(
    ("kind", "right"), [("arithmetic_slip", {"number", "name"}), ("date_slip", {"date", "year", "name"})]
)
def test_slips_are_near_misses(spans, kind: str, right: set[str]) -> None:
    seen = Counter()
    for question, injection, trace, _ in seeded(kind, spans, questions=MANY, most=30):
        assert trace.extra["cleaned_answer"] == injection.details["answered"] != question.answer
        assert kind_of(question.answer) == kind_of(injection.details["answered"]) in right
        seen[kind_of(question.answer)] += 1
        if kind_of(question.answer) == "name":
            assert question.type == "comparison"
            assert (
                injection.details["answered"] in question.question
                or question.aliases
                or "(" in str(question.supporting)
            )
    assert len(seen) >= 2
    rng = random.Random(0)
    for value in ("1,204", "7", "88", "population 12,430"):
        for _ in range(50):
            assert slip_of_number(value, rng) != value
    for value in ("4 March 1951", "March 31, 1951", "1951"):
        for _ in range(50):
            slipped = slip_of_date(value, rng)
            assert slipped != value
            assert DATE.search(slipped) or kind_of(value) == "year"


def test_an_ignored_instruction_is_no_bare_answer(spans) -> None:
    for question, injection, trace, _ in seeded("ignored_instruction", spans):
        assert trace.final_answer == injection.details["replied"]
        assert trace.label != "correct"
        bare = {normalise_answer(text) for text in (*(page.title for page in question.paragraphs), question.answer)}
        assert normalise_answer(trace.final_answer) not in bare
    words = {
        harmless: mean(
            len(t.final_answer.split()) for *_, t, _ in seeded("ignored_instruction", spans, harmless=harmless)
        )
        for harmless in (False, True)
    }
    assert words[False] == pytest.approx(words[True], rel=0.4), "its length does not give it away"


def test_another_question_is_worked_on(spans) -> None:
    differs = 0
    for question, injection, trace, read in seeded("other_question", spans):
        assert injection.details["worked_on"] != question.question == read.trace.question
        natural, _ = run(question)
        differs += trace.final_answer != natural.final_answer
    assert differs >= 10


def test_an_unsupported_claim_leaves_the_evidence_alone(spans) -> None:
    invented = 0
    for question, injection, trace, _ in seeded("unsupported_claim", spans):
        natural, _ = run(question)
        assert (trace.evidence, trace.tool_calls) == (natural.evidence, natural.tool_calls)
        answer = trace.extra["cleaned_answer"]
        assert normalise_answer(answer) == normalise_answer(injection.details["answered"])
        invented += question.type == "bridge" and answer not in " ".join(trace.evidence)
    assert invented >= 4


def test_an_order_in_a_paragraph_is_obeyed_only_when_it_was_read(spans) -> None:
    obeyed = 0
    for _, injection, trace, _ in seeded("prompt_injection", spans):
        read_it = any(injection.details["order"] in text for text in trace.evidence)
        wanted = injection.model.answer
        assert (trace.extra["cleaned_answer"] == wanted) or not read_it
        obeyed += read_it
    assert obeyed >= 8
    resisted = 0
    for _, injection, trace, _ in seeded("prompt_injection", spans, harmless=True):
        resisted += any(injection.details["order"] in text for text in trace.evidence) and trace.label == "correct"
    assert resisted >= 4


def test_talk_before_an_answer_is_no_ignored_instruction(spans) -> None:
    answered = 0
    for question, injection, trace, _ in seeded("ignored_instruction", spans, harmless=True):
        natural, _ = run(question)
        assert trace.tool_calls == natural.tool_calls
        assert trace.label == natural.label
        answered += trace.final_answer.startswith(injection.details["talked"])
    assert answered >= 10


def test_a_fault_without_a_place_gives_way_to_another_so_that_no_sort_of_question_has_fewer() -> None:
    plan = FaultPlan({"arithmetic_slip": 0.25, "unsupported_claim": 0.25}, seed=4, harmless=False)
    drawn = {question.qid: plan.inject(question) for question in MANY}
    for numbers in (True, False):
        of_kind = [drawn[q.qid] for q in MANY if (kind_of(q.answer) == "number") == numbers]
        assert sum(i is not None for i in of_kind) / len(of_kind) == pytest.approx(0.5, abs=0.13)
    assert {i.kind for i in drawn.values() if i} == {"arithmetic_slip", "unsupported_claim"}
    hidden = FaultPlan({"missing_evidence": 0.5, "unsupported_claim": 0.5}, seed=4)
    kinds = {q.qid: hidden.inject(q).kind for q in MANY}
    of_two = Counter(kinds[q.qid] for q in MANY if q.answer in ("yes", "no") or other_side(q))
    assert of_two["missing_evidence"] < of_two["unsupported_claim"] / 2.5  # half of them would be right by luck
    assert Counter(kinds.values())["missing_evidence"] == pytest.approx(len(MANY) / 2, rel=0.15)  # and yet its rate


def test_lost_context_is_a_long_chat_in_which_results_are_forgotten(spans) -> None:
    repeated = 0
    for question, injection, trace, read in seeded("lost_context", spans):
        assert read.trace.question == question.question  # earlier turns are other traces
        assert trace.tool_calls == read.trace.tool_calls
        repeated += "repeated_call" in trace.extra["odd"]
        assert 4 <= len(injection.history) <= 9
    assert repeated >= 4
    for question, injection, trace, read in seeded("lost_context", spans, harmless=True):
        natural, _ = run(question)
        assert len(injection.history) >= 4
        assert (trace.tool_calls, trace.final_answer) == (natural.tool_calls, natural.final_answer)
        assert read.trace.question == question.question


def test_early_stop_answers_after_too_few_calls(spans) -> None:
    seen = Counter()
    for question, injection, trace, _ in seeded("early_stop", spans, questions=MANY, most=60):
        assert len(trace.tool_calls) <= injection.details["after"] < len(question.supporting_titles)
        assert trace.stop_reason in ("answered", "no_answer")
        seen[len(trace.tool_calls)] += 1
    assert set(seen) >= {0, 1}


def test_weak_model_is_another_model_under_the_same_name(spans) -> None:
    differs = 0
    for question, _, trace, read in seeded("weak_model", spans):
        natural, _ = run(question)
        assert (trace.model, natural.model, read.trace.model) == ("offline-weak", "offline", "offline")
        differs += [c.args for c in trace.tool_calls] != [c.args for c in natural.tool_calls]
    assert differs >= 4


def test_no_span_tells_of_fault_or_label(spans) -> None:
    words = (
        *FAULTS,
        "weak",
        "fault",
        "inject",
        "ledger",
        "gold",
        "label",
        "withheld",
        "altered",
        "world-31",
        "harmless",
    )
    shapes: dict[str, set[tuple]] = {}
    for kind in (None, *FAULTS, *(f"harmless {kind}" for kind in HARMLESS)):
        for question in QUESTIONS[:6]:
            before = len(spans())
            faults = HARMLESS if kind and kind.startswith("harmless") else FAULTS
            run(
                question,
                faults[kind.removeprefix("harmless ")](question, random.Random(question.qid)) if kind else None,
            )
            for span in spans()[before:]:
                everything = (
                    f"{span.name} {dict(span.attributes)} {dict(span.resource.attributes)} {span.events}".lower()
                )
                everything = everything.replace('"labels"', "")  # of the request to the model, ADK's own
                everything = everything.replace('"error_type": "tool_error"', "").replace(
                    "'error.type': 'tool_error'", ""
                )
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
        for question, _, trace, _ in seeded(kind, spans, most=6):
            assert trace.label == gold_label(trace.extra["cleaned_answer"], question.answer, question.aliases).label
            labels[trace.label] += 1
    assert labels["correct"] >= 3
    assert labels["wrong"] > labels["correct"]


def test_a_plan_draws_its_rates_and_always_the_same() -> None:
    plan = FaultPlan.parse("seed4", seed=9)
    questions = list(generate_world(1500, seed=2))
    drawn = [plan.inject(question) for question in questions]
    assert drawn == [FaultPlan.parse("seed4", seed=9).inject(question) for question in questions]
    counts = Counter(injection.kind for injection in drawn if injection and not injection.harmless)
    for kind, rate in SEED4_RATES.items():
        assert 0.7 * rate < counts[kind] / 1500 < 1.3 * rate
    assert all(FaultPlan.parse("natural").inject(q) is None for q in QUESTIONS)


def test_natural_runs_bear_the_marks_of_faults_so_often_that_they_do_not_tell() -> None:
    drawn = [FaultPlan.parse("all", seed=1).inject(question) for question in generate_world(3000, seed=2)]
    seeded_runs = [injection for injection in drawn if injection and not injection.harmless]
    assert {injection.kind for injection in seeded_runs} == set(FAULTS)
    for kind in HARMLESS:
        alike = sum(bool(i and i.harmless and i.kind == kind) for i in drawn) / len(drawn)
        assert alike == pytest.approx(AS_OFTEN[kind] * FaultPlan.parse("all").rates[kind], abs=0.012)
    bare = FaultPlan(FaultPlan.parse("all").rates, harmless=False)
    assert not any(i and i.harmless for i in map(bare.inject, MANY))


def test_faults_find_their_place_in_real_questions(shared_data) -> None:
    questions = read_question_file(shared_data / "hotpotqa/hotpotqa_300_distractor.jsonl")
    least = dict.fromkeys(FAULTS, 200) | {"arithmetic_slip": 15, "date_slip": 30, "swapped_hop": 90}
    for kind in FAULTS:
        made = [FAULTS[kind](question, random.Random(1)) for question in questions]
        assert sum(injection is not None for injection in made) > least[kind], kind


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
        ("faults: [{kind: [early_stop], rate: 0.1}]", "faults[0] needs exactly"),
        ("faults: [{kind: early_stop, rate: .nan}]", "between 0 and 1, not nan"),
        pytest.param("faults: " + "[" * 3000, "is not YAML", id="too deep"),
        ("seed: x\nfaults: []", "seed"),
        ("harmless: 3\nfaults: []", "harmless"),
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
    path.write_text("seed: 7\nharmless: false\nfaults: [{kind: early_stop, rate: 0.25}]\n", encoding="utf-8")
    assert FaultPlan.parse(str(path), seed=1) == FaultPlan({"early_stop": 0.25}, 7, harmless=False)
    assert FaultPlan.parse(str(path)).to_json() == {
        "seed": 7, "harmless": False, "faults": [{"kind": "early_stop", "rate": 0.25}],
    }  # fmt: skip
    with pytest.raises(InputError, match="natural, seed4, all or a YAML file"):
        FaultPlan.parse("seed5")
