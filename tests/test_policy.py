"""The policy's promise: a trace is kept with exactly the probability that is recorded, on every replica."""

import json
import math

import numpy as np
import pytest

from observer_core.decisions import REASONS
from observer_core.durations import format_duration, parse_duration
from observer_core.errors import InputError
from observer_core.policy import Outcome, Policy, PolicyFacts, decide, read_policy, uniform
from observer_core.review_budget import MIN_SCORES, BudgetThreshold, Epoch, solve

START = 1_200_000_000.0  # where an epoch of any length used here begins
KEY = b"a key that every replica shares"
FULL = {
    "mode": "enforce",
    "keep_threshold": None,
    "review_budget": {"share": 0.05, "window": "10m"},
    "random_share": 0.02,
    "severity_high": 0.8,
    "on_scorer_failure": "random_share",
    "min_share": {"by": "service.name", "share": 0.005},
    "hash_key": "secret",
    "rules": [
        {"name": "tool-error", "when": {"span.status": "error"}, "keep": 0.5},
        {"name": "vip", "when": {"attribute": {"user.tier": "gold"}, "min_spans": 2}, "keep": 1},
        {"name": "health", "when": {"span.kind": "chain", "min_duration": "2s"}, "keep": 0},
    ],
}


def one(policy: Policy, u: float, p_wrong: float | None, threshold: float = 0.7, **rest) -> Outcome:
    facts = rest.pop("facts", PolicyFacts(service="shop"))
    return decide(policy, u=u, facts=facts, p_wrong=p_wrong, threshold=threshold, **rest)


# --- settings


def test_the_example_of_the_design_reads_and_comes_back():
    policy = read_policy(FULL)
    assert read_policy(policy.to_json()) == policy.model_copy(update={"hash_key": None})
    assert policy.to_json()["rules"][2]["when"] == {"span.kind": "chain", "min_duration": "2s"}
    assert "secret" not in json.dumps(policy.to_json()) + repr(policy)


def test_defaults_are_those_of_the_design_and_versions_follow_what_is_meant():
    assert read_policy(None).version == read_policy({}).version
    assert read_policy({"review_budget": {"window": "600s"}}).version == read_policy({}).version
    assert read_policy({"hash_key": "x"}).version == read_policy({}).version
    assert read_policy({"random_share": 0.03}).version != read_policy({}).version
    assert read_policy({"min_share": None}).version != read_policy({}).version
    assert read_policy({"keep_threshold": 0.5}).review_budget is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_treshold": 0.5}, "policy.keep_treshold: no such setting"),
        (
            {"rules": [{"name": "a", "when": {"span.kinds": "LLM"}, "keep": 1}]},
            "policy.rules[0].when.span.kinds: no such",
        ),
        ({"rules": [{"name": "a", "when": {}, "keep": 2}]}, "policy.rules[0].keep: input should be less than"),
        (
            {"rules": [{"name": "a", "when": {"min_duration": 2}, "keep": 1}]},
            "policy.rules[0].when.min_duration: 2 is not",
        ),
        ({"rules": [{"name": "a", "when": {}, "keep": 1}] * 2}, "policy: two rules are named 'a'"),
        ({"review_budget": {"share": 0.01}}, "review_budget.share 0.01 includes random_share 0.02"),
        ({"review_budget": {"window": "0s"}}, "policy.review_budget: window must be longer"),
        ({"review_budget": {}, "keep_threshold": 0.5}, "policy: set either keep_threshold or review_budget"),
        ({"review_budget": None}, "policy: set either keep_threshold or review_budget"),
        ({"random_share": float("nan")}, "policy.random_share: input should be"),
        ([], "policy: input should be a valid dictionary"),
    ],
)
def test_a_bad_setting_is_one_line_with_its_path(settings, message):
    with pytest.raises(InputError, match=r"^policy") as caught:
        read_policy(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("2s", 2), ("1.5m", 90), ("10m", 600), ("30d", 2592000)])
def test_durations_read_and_come_back(text, seconds):
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "10", 10, "10 minutes", "-1s", "1e3s", None, True, "1h30m"])
def test_other_forms_of_durations_are_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


# --- one decision


def test_rules_match_on_everything_they_name():
    rule = read_policy(
        {"rules": [{"name": "r", "keep": 1, "when": {
            "span.status": "error", "span.kind": "tool", "tool": "search", "attribute": {"n": 3, "flag": True},
            "service": "shop", "project": "p", "min_spans": 2, "min_duration": "1s",
            "p_wrong": {"min": 0.2, "max": 0.4},
        }}]}
    ).rules[0]  # fmt: skip
    whole = {
        "statuses": {"ok", "error"}, "kinds": {"TOOL"}, "tools": {"search"}, "service": "shop", "project": "p",
        "attributes": {"n": [1, 3], "flag": [True]}, "spans": 2, "duration_ms": 1000.0,
    }  # fmt: skip
    assert rule.when.matches(PolicyFacts(**whole), 0.3)
    for change in (
        {"statuses": {"ok"}}, {"kinds": {"LLM"}}, {"tools": ()}, {"service": "x"}, {"project": "x"}, {"spans": 1},
        {"duration_ms": 999.0}, {"attributes": {"n": [1], "flag": [True]}}, {"attributes": {"n": [3], "flag": [1]}},
    ):  # fmt: skip
        assert not rule.when.matches(PolicyFacts(**whole | change), 0.3), change
    for p_wrong in (None, 0.1, 0.5):
        assert not rule.when.matches(PolicyFacts(**whole), p_wrong)


def test_the_first_matching_rule_wins_and_one_or_zero_decides():
    policy = read_policy({"rules": [
        {"name": "drop", "when": {"service": "health"}, "keep": 0},
        {"name": "keep", "when": {}, "keep": 1},
    ]})  # fmt: skip
    dropped = one(policy, 0.0, 0.99, facts=PolicyFacts(service="health"))
    assert (dropped.decision, dropped.reason, dropped.keep_probability) == ("drop", "rule:drop", 0.0)
    kept = one(policy, 0.999, 0.0, thin=0.1)
    assert (kept.decision, kept.reason, kept.keep_probability) == ("keep", "rule:keep", 1.0)


def test_a_probability_that_fails_falls_through_to_the_score():
    policy = read_policy({"rules": [{"name": "half", "when": {}, "keep": 0.5}]})
    below = 0.5 + 0.5 * 0.02
    assert one(policy, 0.49, 0.1).reason == "rule:half"
    assert one(policy, 0.505, 0.1).reason == "random_share"
    assert one(policy, 0.52, 0.1).reason == "below_threshold"
    assert one(policy, 0.52, 0.1).keep_probability == pytest.approx(below)
    above = one(policy, 0.99, 0.9)
    assert (above.reason, above.keep_probability) == ("score", 1.0)


def test_ties_thinning_and_the_group_minimum_are_part_of_the_probability():
    policy = read_policy({})
    tie = one(policy, 0.5, 0.7, at_threshold=0.25)
    assert (tie.decision, tie.reason) == ("drop", "over_budget")
    assert tie.keep_probability == pytest.approx(0.02 + 0.98 * 0.25)
    thinned = one(policy, 0.5, 0.9, thin=0.4)
    assert (thinned.decision, thinned.reason, thinned.keep_probability) == ("drop", "over_budget", 0.4)
    assert one(policy, 0.5, 0.1, thin=0.1).keep_probability == 0.005
    assert one(policy, 0.5, 0.1, thin=0.1, facts=PolicyFacts()).keep_probability == pytest.approx(0.002)


def test_without_a_score_the_random_share_holds_and_the_reason_says_why():
    policy = read_policy({})
    for unscored in ("scorer_failed", "overload"):
        for u, decision in ((0.01, "keep"), (0.03, "drop")):
            outcome = one(policy, u, None, unscored=unscored)
            assert (outcome.decision, outcome.reason, outcome.keep_probability) == (decision, unscored, 0.02)
    failing_open = read_policy({"on_scorer_failure": "keep"})
    assert one(failing_open, 0.99, None, thin=0.1).keep_probability == 1.0
    assert one(failing_open, 0.99, None, unscored="overload").decision == "drop"


def test_severity_and_dry_run():
    policy = read_policy({})
    assert [one(policy, 0.5, p).severity for p in (0.85, 0.75, 0.1)] == ["high", "normal", "none"]
    dry = one(read_policy({"mode": "dry_run"}), 0.5, 0.1)
    assert (dry.decision, dry.keep_probability, dry.would_decide, dry.reason) == (
        "keep",
        1.0,
        "drop",
        "below_threshold",
    )


# --- the hash


def test_u_is_uniform_keyed_and_the_same_everywhere():
    ids = [f"{i:032x}" for i in range(100_000)]
    us = np.array([uniform(KEY, trace_id) for trace_id in ids])
    assert us.min() >= 0
    assert us.max() < 1
    grid = np.sort(us)
    distance = np.max(np.abs(grid - np.arange(len(grid)) / len(grid)))
    assert distance < 1.95 / math.sqrt(len(grid))  # Kolmogorov-Smirnov, p = 0.001
    other = np.array([uniform(b"another", trace_id) for trace_id in ids])
    assert abs(np.corrcoef(us, other)[0, 1]) < 0.02
    assert uniform(KEY, "0af7651916cd43dd8448eb211c80319c") == uniform(KEY, "0af7651916cd43dd8448eb211c80319c")
    assert 0 <= uniform(b"k" * 200, "any string, ünicode") < 1


# --- the whole policy over traffic


def traffic(n: int, seed: int, *, coarse: bool = False, shift: float = 0.0):
    """Scores of a drifting stream, with facts: 8 % tool errors, a rare service, a few VIPs, health checks."""
    rng = np.random.default_rng(seed)
    scores = rng.beta(2 + shift, 6, n)
    if coarse:
        scores = np.round(scores, 1)
    kinds = rng.random(n)
    for i in range(n):
        attributes = {"user.tier": ["gold"]} if kinds[i] < 0.01 else {}
        yield f"{seed:08x}{i:024x}", float(scores[i]), PolicyFacts(
            statuses={"error"} if kinds[i] > 0.92 else {"ok"},
            kinds={"CHAIN"} if 0.5 < kinds[i] < 0.52 else {"AGENT"},
            attributes=attributes,
            service="rare" if 0.2 < kinds[i] < 0.205 else "shop",
            spans=3,
            duration_ms=2500.0,
        )  # fmt: skip


def run(policy: Policy, stream, *, per_second: float, budget: BudgetThreshold | None = None, start: float = START):
    budget = budget or BudgetThreshold(policy)
    outcomes = []
    for i, (trace_id, score, facts) in enumerate(stream):
        now = start + i / per_second
        epoch = budget.epoch(now)
        outcome = decide(
            policy, u=uniform(KEY, trace_id), facts=facts, p_wrong=score, threshold=epoch.threshold,
            at_threshold=epoch.at_threshold, thin=epoch.thin,
        )  # fmt: skip
        budget.observe(outcome, now)
        outcomes.append(outcome)
    return outcomes


def test_realised_shares_equal_the_stated_probabilities():
    policy = read_policy(FULL)
    outcomes = run(policy, traffic(100_000, 1, coarse=True), per_second=100)
    stated = np.array([o.keep_probability for o in outcomes])
    kept = np.array([o.decision == "keep" for o in outcomes])
    for low, high in ((0.0, 0.01), (0.01, 0.03), (0.03, 0.3), (0.3, 0.6), (0.6, 0.999), (0.0, 1.0)):
        rows = (stated > low) & (stated < high)
        error = math.sqrt((stated[rows] * (1 - stated[rows])).sum())
        assert abs(kept[rows].sum() - stated[rows].sum()) <= 4 * error, (low, high)
    assert kept[stated == 1].all()
    assert not kept[stated == 0].any()
    # the weights 1 / P give back what was there, dropped traces included
    scores = np.array([o.p_wrong for o in outcomes])
    rows = stated > 0
    estimate = (scores[rows & kept] / stated[rows & kept]).sum()
    spread = math.sqrt((scores[rows] ** 2 * (1 - stated[rows]) / stated[rows]).sum())
    assert abs(estimate - scores[rows].sum()) <= 4 * spread
    assert {o.reason for o in outcomes} - {"rule:tool-error", "rule:vip", "rule:health"} <= set(REASONS)


@pytest.mark.parametrize("coarse", [False, True])
def test_the_budget_holds_with_ties_and_includes_the_random_share(coarse):
    policy = read_policy({"review_budget": {"share": 0.05, "window": "60s"}})
    outcomes = run(policy, traffic(60_000, 2, coarse=coarse), per_second=100)[6_000:]
    expected = np.mean([o.keep_probability for o in outcomes])
    assert expected == pytest.approx(0.05, abs=0.004)
    assert np.mean([o.decision == "keep" for o in outcomes]) == pytest.approx(0.05, abs=0.006)


def test_the_threshold_follows_the_scores_and_a_flood_passes_the_budget_for_one_epoch_only():
    policy = read_policy({"review_budget": {"share": 0.05, "window": "60s"}})
    budget = BudgetThreshold(policy)
    run(policy, traffic(12_000, 3), per_second=100, budget=budget, start=START)
    calm = budget.epoch(START + 120).threshold
    after = run(policy, traffic(18_000, 4, shift=6.0), per_second=100, budget=budget, start=START + 120)
    assert budget.epoch(START + 301).threshold > calm + 0.2
    assert np.mean([o.keep_probability for o in after[:600]]) > 0.3  # the epoch in which it happens was fixed before
    assert np.mean([o.keep_probability for o in after[6_000:]]) == pytest.approx(0.05, abs=0.005)


def test_an_epoch_is_fixed_before_the_traces_it_decides_and_equal_on_replicas():
    policy = read_policy({})
    left, right = BudgetThreshold(policy), BudgetThreshold(policy)
    first = left.epoch(START)
    for _ in range(1000):
        left.observe(one(policy, 0.5, 0.999), START + 1)
    assert left.epoch(START + 59) == first == right.epoch(START + 30)
    stream = list(traffic(3_000, 5))
    assert run(policy, stream, per_second=10) == run(policy, stream, per_second=10)
    assert left.epoch(START - 3600) == first  # a clock set back changes nothing


def test_rules_that_keep_more_than_the_budget_are_thinned_not_cut():
    policy = read_policy({
        "review_budget": {"share": 0.05, "window": "60s"},
        "rules": [{"name": "all", "when": {}, "keep": 0.4}],
    })  # fmt: skip
    outcomes = run(policy, traffic(30_000, 6), per_second=100)[12_000:]
    stated = np.array([o.keep_probability for o in outcomes])
    assert stated.min() > 0
    assert stated.mean() == pytest.approx(0.05, abs=0.003)
    assert {o.reason for o in outcomes} == {"rule:all", "random_share", "over_budget", "below_threshold"}


def test_solve_meets_the_share_exactly_where_scores_tie():
    scores = np.repeat([0.2, 0.5, 0.9], [600, 380, 20])
    bases = np.full(1000, 0.02)
    threshold, at, thin = solve(scores, bases, 0.05)
    assert (threshold, thin) == (0.5, 1.0)
    assert 20 + 380 * (0.02 + 0.98 * at) + 600 * 0.02 == pytest.approx(50)
    assert solve(scores, bases, 1.0)[:2] == pytest.approx((0.2, 1.0))


def test_the_first_epoch_comes_from_validation_scores_and_a_restart_changes_nothing():
    policy = read_policy({})
    validation = np.random.default_rng(0).beta(2, 6, 5_000)
    budget = BudgetThreshold(policy, initial_scores=validation.tolist())
    expected = np.quantile(validation, 1 - 0.03 / 0.98)
    assert budget.epoch(START).threshold == pytest.approx(expected, abs=0.03)
    record = json.loads(json.dumps(budget.to_json()))
    assert len(record["scores"]) == MIN_SCORES
    again = BudgetThreshold.restore(policy, record)
    assert again.epoch(START + 30) == budget.epoch(START + 30)
    assert again.epoch(START + 90).threshold == pytest.approx(expected, abs=0.03)
    changed = BudgetThreshold.restore(read_policy({"review_budget": {"share": 0.2}}), record)
    assert changed.epoch(START + 30).threshold < budget.epoch(START + 30).threshold - 0.1


def test_a_record_from_before_the_first_epoch_restores():
    policy = read_policy({"keep_threshold": 0.5})
    again = BudgetThreshold.restore(policy, BudgetThreshold(policy).to_json())
    assert again.epoch(START) == Epoch(0, 0.5)


def test_a_fixed_threshold_is_one_epoch():
    assert BudgetThreshold(read_policy({"keep_threshold": 0.6})).epoch(START) == Epoch(0, 0.6)
