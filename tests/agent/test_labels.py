import json

import pytest

from observer_core.traces.labels import exact_match, f1, gold_label, normalise_answer


@pytest.mark.parametrize(
    ("answer", "gold", "em", "expected_f1", "label"),
    [
        ("The Eiffel Tower", "eiffel tower", True, 1.0, "correct"),
        ("Eiffel-Tower", "eiffel tower", False, 0.0, "wrong"),  # punctuation goes without leaving a blank
        ("U.S.A.", "usa", True, 1.0, "correct"),
        ("12,430", "12430", True, 1.0, "correct"),
        ("March 4, 1951", "4 March 1951", False, 1.0, "correct"),
        ("Maro Velk", "Maro Edlin Velk", False, 0.8, "correct"),
        ("Velk", "Maro Velk", False, 2 / 3, "partial"),
        ("river Orsa of the north", "Orsa", False, 0.4, "partial"),
        ("a very long answer that names Orsa somewhere", "Orsa", False, 2 / 8, "wrong"),
        ("Lyon", "Paris", False, 0.0, "wrong"),
        ("", "Paris", False, 0.0, "wrong"),
        ("   ", "Paris", False, 0.0, "wrong"),
        ("yes", "Yes.", True, 1.0, "correct"),
        ("yes, both", "yes", False, 0.0, "wrong"),  # all or nothing for yes, no, noanswer
        ("no", "no one knows", False, 0.0, "wrong"),
        ("noanswer", "Paris", False, 0.0, "wrong"),
        ("Paris Paris", "Paris", False, 2 / 3, "partial"),  # tokens count as often as they occur
        ("an apple", "the apple", True, 1.0, "correct"),
        ("theatre", "atre", False, 0.0, "wrong"),  # articles only as whole words
        ("ÉCOLE", "école", True, 1.0, "correct"),
    ],
)
def test_hotpotqa_rules(answer: str, gold: str, em: bool, expected_f1: float, label: str) -> None:
    got = gold_label(answer, gold)
    assert (got.em, got.label) == (em, label)
    assert got.f1 == pytest.approx(expected_f1)


def test_the_best_alias_counts() -> None:
    assert gold_label("M. Velk", "Maro Velk").label == "partial"
    assert gold_label("M. Velk", "Maro Velk", ["M. Velk", "Mo"]).label == "correct"


def test_normalisation_keeps_order_and_inner_words() -> None:
    assert normalise_answer("  The  Cat, a Hat & an 'Ant' ") == "cat hat ant"
    assert exact_match("the", "a")
    assert f1("the", "a") == 0.0


def test_agrees_with_every_label_of_real_traces(shared_data) -> None:
    rows = [json.loads(line) for line in (shared_data / "agent_traces/hotpotqa_react.jsonl").open(encoding="utf-8")]
    disagreements = []
    for row in rows:
        got = gold_label(row["final_answer"], row["gold_answer"])
        if (got.em, got.label) != (bool(row["em"]), row["label"]) or abs(got.f1 - row["f1"]) > 1e-9:
            disagreements.append((row["trace_id"], row["final_answer"], row["gold_answer"], got))
    assert len(rows) == 1224
    assert disagreements == []
