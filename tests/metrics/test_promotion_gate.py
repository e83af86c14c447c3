"""Comparing, promoting, and estimating the error rate."""

import json

import numpy as np
import pyarrow as pa
import pytest

from observer_core.errors import InputError
from observer_core.metrics.compare import compare
from observer_core.metrics.error_rate import true_error_rate
from observer_core.metrics.gate import GateSettings, alpha_of_night, gate
from observer_core.metrics.predictions import PREDICTION_SCHEMA


def test_a_better_challenger_passes_with_its_reasons(table):
    predictions = table(400, new=0.9, old=0.4, baseline=0.3)
    verdict = gate(predictions, challenger="new", champion="old", baseline="baseline")
    assert verdict.promote, verdict.reasons
    assert verdict.reasons[0] == "There are 400 test questions; the gate asks for 200."
    assert verdict.reasons[1].startswith("It ranks better than the champion old: AUROC +0.")
    assert verdict.numbers["champion"]["questions"] == 400
    assert json.loads(json.dumps(verdict.to_json(), allow_nan=False))["promote"] is True
    first = gate(predictions, challenger="new", champion=None, baseline="baseline")
    assert first.promote
    assert "There is no champion to beat." in first.reasons


@pytest.mark.parametrize(
    ("skill", "settings", "nights", "first_reason"),
    [
        ({"new": 0.4, "old": 0.9, "baseline": 0.1}, {}, 0, "It is not shown to rank better than the champion old"),
        ({"new": 0.9, "old": 0.3, "baseline": 0.95}, {}, 0, "It is not shown to rank better than the baseline"),
        ({"new": 0.9, "old": 0.3, "baseline": 0.3}, {"min_test_questions": 401}, 0, "There are 400 test questions"),
        ({"new": 0.45, "old": 0.4, "baseline": 0.1}, {}, 10_000, "It is not shown to rank better than the champion"),
    ],
)
def test_the_champion_stays_and_the_first_reason_says_why(table, skill, settings, nights, first_reason):
    verdict = gate(
        table(400, **skill), challenger="new", champion="old", baseline="baseline", settings=GateSettings(**settings),
        nights_before=nights,
    )  # fmt: skip
    assert not verdict.promote
    assert verdict.reasons[0].startswith(first_reason)
    assert verdict.sentence == "old stays."


def test_a_better_ranking_with_worse_probabilities_is_refused(table):
    predictions = table(400, new=0.9, old=0.4)
    rows = predictions.to_pylist()
    for row in rows:
        if row["scorer"] == "new":
            row["p_wrong"] = 0.9 + row["p_wrong"] / 10
    verdict = gate(
        pa.Table.from_pylist(rows, schema=PREDICTION_SCHEMA), challenger="new", champion="old", baseline=None
    )
    assert not verdict.promote
    assert verdict.reasons[0].startswith("Its probabilities are worse than those of the champion old: Brier score +0.")


def test_what_cannot_be_judged_is_a_verdict_too(table):
    predictions = table(50, new=0.9, old=0.4)
    cases = [
        (("new", None, None), "There is neither a champion nor a baseline"),
        (("new", "gone", None), "gone has no predictions on these traces."),
        (("new", "new", "old"), "new is the champion already."),
    ]
    for (challenger, champion, baseline), reason in cases:
        verdict = gate(predictions, challenger=challenger, champion=champion, baseline=baseline)
        assert (verdict.promote, verdict.reasons[0].startswith(reason)) == (False, True), verdict.reasons
    trained_on = table(400, split="train", new=0.9, old=0.4)
    verdict = gate(trained_on, challenger="new", champion="old", baseline=None)
    assert verdict.reasons[0] == "There are 0 test questions; the gate asks for 200."
    rows = [
        row for row in table(400, new=0.9, old=0.4).to_pylist() if row["scorer"] == "new" or row["trace_id"] != "t7"
    ]
    partly = gate(pa.Table.from_pylist(rows, schema=PREDICTION_SCHEMA), challenger="new", champion="old", baseline=None)
    assert partly.reasons[0].startswith("It was not scored on the same test traces as the champion old (1200 and 1199")


def test_equal_challengers_pass_no_more_often_than_the_error_allows(table):
    passed = sum(
        gate(table(60, seed=seed, new=0.5, old=0.5), challenger="new", champion="old", baseline=None,
             settings=GateSettings(min_test_questions=60, alpha=0.1, max_brier_increase=1)).promote
        for seed in range(300)
    )  # fmt: skip
    share = alpha_of_night(0.1, 0)
    assert share == pytest.approx(0.0608, abs=1e-4)
    assert passed / 300 <= share + 3 * (share / 300) ** 0.5
    assert sum(alpha_of_night(0.1, night) for night in range(100_000)) == pytest.approx(0.1, abs=1e-5)


def test_settings_that_make_no_sense_are_refused():
    for bad in ({"alpha": 0.0}, {"alpha": 0.7}, {"min_test_questions": 1}, {"max_brier_increase": float("nan")}):
        with pytest.raises(InputError, match=next(iter(bad))):
            GateSettings(**bad)


def test_differences_are_paired_and_signed(table):
    predictions = table(200, a=0.9, b=0.4)
    ab, ba = compare(predictions, "a", "b"), compare(predictions, "b", "a")
    assert (ab.n, ab.questions) == (600, 200)
    assert ab.differences["auroc"].lo > 0
    assert ab.differences["recall_at_20pct"].lo > 0
    assert ab.differences["brier"].hi < 0
    for name, difference in ab.differences.items():
        assert difference.value == pytest.approx(-ba.differences[name].value), name
        assert difference.lo == pytest.approx(-ba.differences[name].hi), name
    itself = compare(predictions, "a", "a").differences
    assert {d.value for d in itself.values()} == {0}
    assert itself["recall_at_5pct"].lo is None
    assert compare(predictions, "a", "b", split="train").differences["auroc"].reason == "there are no such traces"


# --- the error rate


def simulate(rng, base: float, n: int, *, budget: float = 0.05, random_share: float = 0.02):
    """Traffic under a budget policy, the kept ones drawn for review, high scores more often."""
    wrong = rng.random(n) < base
    score = rng.normal(1.5 * wrong, 1)
    top = score >= np.quantile(score, 1 - (budget - random_share) / (1 - random_share))
    keep = np.where(top, 1.0, random_share)
    review = np.where(score > np.quantile(score, 0.98), 0.9, 0.6)
    seen = (rng.random(n) < keep) & (rng.random(n) < review)
    return keep, [bool(w) if s else None for w, s in zip(wrong, seen, strict=True)], review.tolist()


@pytest.mark.parametrize(("base", "n"), [(0.03, 1000), (0.10, 1000)])
def test_the_interval_of_the_error_rate_covers_the_truth(base, n):
    rng = np.random.default_rng(11)
    found = [true_error_rate(*simulate(rng, base, n)).estimate for _ in range(500)]
    covered = np.mean([e.lo is not None and e.lo <= base <= e.hi for e in found])
    assert 0.91 <= covered <= 0.99
    values = [e.value for e in found if e.value is not None]
    assert abs(np.mean(values) - base) <= 4 * np.std(values) / len(values) ** 0.5


def test_the_error_rate_by_hand_and_its_scope():
    keep = [1.0] * 10 + [0.1] * 90 + [0.0] * 5
    wrong: list[bool | None] = [True] * 8 + [False] * 2 + [True, *[False] * 9] + [None] * 80 + [None] * 5
    found = true_error_rate(keep, wrong)
    assert found.estimate.value == pytest.approx(0.1 * 0.8 + 0.9 * 0.1)
    assert (found.out_of_scope, found.estimate.n) == (5, 20)
    assert [(s.received, s.reviewed, s.rate) for s in found.strata] == [(10, 10, 0.8), (90, 10, 0.1)]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["strata"][1]["effective"] == pytest.approx(10)


def test_without_reviews_or_traces_there_is_a_reason():
    assert true_error_rate([], []).estimate.reason == "no traces were received"
    assert true_error_rate([0.0], [None]).estimate.reason == "no traces were received"
    found = true_error_rate([1.0, 0.02], [True, None])
    assert (found.estimate.value, found.estimate.reason) == (None, "no trace kept at random has been reviewed")
