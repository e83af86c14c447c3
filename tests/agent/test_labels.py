import json

import pytest

from observer_core.traces.label_checks import agreement, label_doubts
from observer_core.traces.labels import (
    exact_match,
    f1,
    gold_label,
    normalise_answer,
    supporting_coverage,
    supporting_score,
)


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


@pytest.mark.parametrize(
    ("named", "gold", "em", "precision", "recall", "both"),
    [
        ([("A", 0), ("B", 2)], [("B", 2), ("A", 0)], True, 1.0, 1.0, 1.0),
        ([("A", 0)], [("A", 0), ("B", 2)], False, 1.0, 0.5, 2 / 3),
        ([("A", 0), ("A", 1), ("C", 0), ("B", 2)], [("A", 0), ("B", 2)], False, 0.5, 1.0, 2 / 3),
        ([("A", 1)], [("A", 0)], False, 0.0, 0.0, 0.0),
        ([], [("A", 0)], False, 0.0, 0.0, 0.0),
        ([("A", 0), ("A", 0)], [("A", 0)], True, 1.0, 1.0, 1.0),  # a set: named twice counts once
    ],
)
def test_supporting_facts_as_the_script_compares_them(named, gold, em, precision, recall, both) -> None:
    got = supporting_score(named, gold)
    assert (got.em, got.precision, got.recall) == (em, precision, recall)
    assert got.f1 == pytest.approx(both)


def test_coverage_is_the_share_of_supporting_sentences_in_the_evidence() -> None:
    evidence = ["Velk: It lies  on the Orsa. It is old.", "Orsa: A river."]
    assert supporting_coverage(evidence, ["It lies on the Orsa.", " It flows north."]) == 0.5
    assert supporting_coverage([], ["x"]) == 0.0
    assert supporting_coverage(evidence, []) is None


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("the answer is surely the river Orsa of the north", "Orsa", ["contains_gold"]),
        ("Maro Velk", "Maro Jan Edlin Velk", ["inside_gold"]),
        ("42", "42 people of the town", ["inside_gold", "same_number"]),
        ("Yes, both were", "yes", ["yes_no_in_words"]),
        ("No, they were not", "yes", []),
        ("forty-two", "42", ["same_number"]),
        ("1,204 inhabitants in all", "1204", ["contains_gold", "same_number"]),
        ("43", "42", []),
        ("March 1951", "4 March 1951", []),  # F1 0.8 is correct already
        ("1951", "4 March 1951", ["inside_gold", "same_date"]),
        ("1952", "4 March 1951", []),
        ("Derrickson Scot", "Derickson Scott", ["spelling"]),
        ("E. Wood", "Edward Wood", ["initials"]),
        ("Lyon", "Paris", []),
        ("of", "bank of the Orsa", []),
        ("", "Paris", []),
        ("Paris", "Paris", []),
    ],
)
def test_what_a_reader_might_dispute(answer: str, gold: str, expected: list[str]) -> None:
    assert label_doubts(answer, gold) == expected


def test_a_right_answer_that_stands_nowhere_in_the_evidence_is_luck() -> None:
    assert label_doubts("Paris", "Paris", evidence=["Lyon is a town."]) == ["unsupported"]
    assert label_doubts("Paris", "Paris", evidence=["It is in Paris."]) == []
    assert label_doubts("P.", "Paris", ["P."], evidence=["It is in Paris."]) == []
    assert label_doubts("yes", "yes", evidence=[]) == []
    assert label_doubts("Paris", "Paris") == []


def test_agreement() -> None:
    pairs = [("wrong", "wrong")] * 4 + [("correct", "correct")] * 4 + [("partial", "correct"), ("partial", "wrong")]
    got = agreement(pairs)
    assert (got.n, got.share) == (10, 0.8)
    assert got.kappa == pytest.approx((0.8 - 0.4) / 0.6)  # by chance 0.4 · 0.5 + 0.2 · 0 + 0.4 · 0.5
    assert got.share_wrong == 0.9
    assert got.kappa_wrong == pytest.approx((0.9 - 0.5) / 0.5)
    assert got.table["partial", "correct"] == 1
    empty = agreement([])
    assert (empty.n, empty.share, empty.kappa) == (0, None, None)
    assert agreement([("wrong", "wrong")]).kappa is None
