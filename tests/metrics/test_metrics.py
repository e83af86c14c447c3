"""Statistics against scikit-learn, against brute force, and by simulation."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import beta
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression

from observer_core.decision.protocol import Score
from observer_core.errors import InputError, ObserverError
from observer_core.metrics import probability, ranking
from observer_core.metrics.estimate import jeffreys
from observer_core.metrics.evaluate import evaluate, metrics_of
from observer_core.metrics.predictions import (
    PREDICTION_SCHEMA,
    Sample,
    pair,
    predict,
    read_predictions,
    sample_of,
    write_predictions,
)
from observer_core.traces.trace import Trace


def make(wrong, p, *, weight=None, group=None, agent=None, partial=None, seeded=None) -> Sample:
    n = len(p)
    groups, group = np.unique(np.arange(n) if group is None else group, return_inverse=True)
    none = np.zeros(n, dtype=bool)
    return Sample(
        keys=tuple(map(str, range(n))),
        wrong=np.asarray(wrong, dtype=bool),
        partial=none if partial is None else np.asarray(partial),
        seeded=none if seeded is None else np.asarray(seeded),
        p=np.asarray(p, dtype=float),
        weight=np.ones(n) if weight is None else np.asarray(weight, dtype=float),
        group=group,
        groups=len(groups),
        agent=np.zeros(n, dtype=int) if agent is None else np.asarray(agent),
    )


def random_sample(seed: int, n: int = 300, *, ties: bool = True) -> Sample:
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.35
    p = rng.normal(0.4 + 0.2 * wrong, 0.2)
    return make(
        wrong,
        np.clip(np.round(p, 1 if ties else 9), 0.05, 0.95),
        weight=rng.exponential(2, n) + 0.1,
        group=rng.integers(n // 3, size=n),
        agent=rng.integers(3, size=n),
    )


@pytest.mark.parametrize("n", [0.3, 7, 1_000, 100_000])
@pytest.mark.parametrize("p", [1e-4, 0.03, 0.5, 0.999])
def test_jeffreys_limits_are_scipys_quantiles(p: float, n: float):
    assert jeffreys(p, n) == pytest.approx(beta.ppf([0.025, 0.975], p * n + 0.5, (1 - p) * n + 0.5), rel=1e-9)
    assert jeffreys(0, n) == pytest.approx((0, beta.ppf(0.975, 0.5, n + 0.5)), rel=1e-9)
    assert jeffreys(1, n) == pytest.approx((beta.ppf(0.025, n + 0.5, 0.5), 1), rel=1e-9)


@pytest.mark.parametrize("ties", [True, False])
def test_point_values_are_those_of_scikit_learn(ties):
    s = random_sample(1, ties=ties)
    assert ranking.auroc(s).value == pytest.approx(sk.roc_auc_score(s.wrong, s.p, sample_weight=s.weight))
    found = metrics_of(s)
    assert found["auprc"].value == pytest.approx(sk.average_precision_score(s.wrong, s.p, sample_weight=s.weight))
    assert found["brier"].value == pytest.approx(sk.brier_score_loss(s.wrong, s.p, sample_weight=s.weight))
    assert found["log_loss"].value == pytest.approx(sk.log_loss(s.wrong, s.p, sample_weight=s.weight))
    assert found["prevalence"].value == pytest.approx(np.average(s.wrong, weights=s.weight))
    within = [
        sk.roc_auc_score(s.wrong[s.agent == a], s.p[s.agent == a], sample_weight=s.weight[s.agent == a])
        for a in range(3)
    ]
    assert found["auroc_within_agent"].value == pytest.approx(np.mean(within))
    logit = np.log(s.p / (1 - s.p))[:, None]
    fit = LogisticRegression(C=1e10, tol=1e-10).fit(logit, s.wrong, sample_weight=s.weight)
    assert found["calibration_slope"].value == pytest.approx(fit.coef_[0, 0], abs=1e-4)
    for estimate in found.values():
        assert estimate.lo <= estimate.value <= estimate.hi


def test_the_auroc_variance_is_obuchowskis_and_delongs_without_clusters():
    s = random_sample(2, 60)
    w, x, y = s.weight * 0 + 1, s.p[s.wrong], s.p[~s.wrong]
    kernel = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    theta, m, n = kernel.mean(), len(x), len(y)
    plain = make(s.wrong, s.p)
    delong = kernel.mean(1).var(ddof=1) / m + kernel.mean(0).var(ddof=1) / n
    assert ranking.auroc_parts(plain).se == pytest.approx(math.sqrt(delong))

    clustered = make(s.wrong, s.p, weight=w, group=s.group)
    gx, gy = clustered.group[s.wrong], clustered.group[~s.wrong]
    a = {k: (kernel.mean(1)[gx == k] - theta).sum() for k in range(clustered.groups)}
    b = {k: (kernel.mean(0)[gy == k] - theta).sum() for k in range(clustered.groups)}
    i10, i01, i = len(set(gx)), len(set(gy)), clustered.groups
    s10 = i10 / ((i10 - 1) * m) * sum(v**2 for v in a.values())
    s01 = i01 / ((i01 - 1) * n) * sum(v**2 for v in b.values())
    s11 = i / (i - 1) * sum(a[k] * b[k] for k in a)
    assert ranking.auroc_parts(clustered).se == pytest.approx(math.sqrt(s10 / m + s01 / n + 2 * s11 / (m * n)))


def test_recall_at_a_budget_is_the_mean_over_random_orders_of_ties():
    rng = np.random.default_rng(3)
    p, wrong = np.round(rng.random(60), 1), rng.random(60) < 0.3
    orders = [np.lexsort((rng.random(60), -p)) for _ in range(4000)]
    for budget, top in ((0.05, 3), (0.1, 6), (0.2, 12)):
        brute = np.mean([wrong[order[:top]].sum() for order in orders]) / wrong.sum()
        found = ranking.Gains(p, wrong).recall(np.ones(60), np.array([budget]))[0]
        assert found == pytest.approx(brute, abs=0.01)


def test_a_weight_of_three_is_three_rows():
    rng = np.random.default_rng(4)
    wrong, p = rng.random(80) < 0.4, np.round(rng.random(80), 1)
    times = rng.integers(1, 4, 80)
    weighted = metrics_of(make(wrong, p, weight=times, group=np.arange(80)))
    repeated = metrics_of(make(wrong.repeat(times), p.repeat(times), group=np.arange(80).repeat(times)))
    for name in weighted:
        if name not in ("ece_debiased", "auroc_within_agent"):  # number of bins follows the rows; one agent only
            assert weighted[name].value == pytest.approx(repeated[name].value, abs=1e-7), name
            assert weighted[name].lo == pytest.approx(repeated[name].lo, abs=1e-5), name


def test_an_oracle_reaches_all_that_can_be_reached_and_chance_nothing():
    wrong = np.arange(1000) < 600
    oracle = metrics_of(make(wrong, np.where(wrong, 0.9, 0.1)))
    chance = metrics_of(make(wrong, np.full(1000, 0.6)))
    assert oracle["recall_at_5pct"].value == pytest.approx(0.05 / 0.6)
    assert oracle["normalised_recall_at_5pct"].value == pytest.approx(1)
    assert oracle["auroc"].hi == 1
    assert 0.98 < oracle["auroc"].lo < 1
    assert oracle["calibration_slope"].value is None
    assert chance["auroc"].value == 0.5
    assert chance["lift_at_10pct"].value == pytest.approx(1)
    assert chance["normalised_recall_at_20pct"].value == pytest.approx(0)


def clustered_draw(rng, questions: int, rows: int):
    """Traces of questions that are hard or easy; scorer `a` mostly sees the question, `b` mostly the trace."""
    group = np.repeat(np.arange(questions), rows)
    hard = rng.normal(0, 1.5, questions)[group]
    wrong = hard + rng.normal(0, 1, len(group)) > 0
    a = 0.8 * wrong + rng.normal(0, 1.5, questions)[group] + rng.normal(0, 0.5, len(group))
    b = wrong + rng.normal(0, 0.7, questions)[group] + rng.normal(0, 1.5, len(group))
    return group, wrong, 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))


def test_clustered_intervals_cover_and_row_level_ones_would_not():
    rng = np.random.default_rng(5)
    _, wrong, a, b = clustered_draw(rng, 100_000, 5)
    truth = {"auroc": sk.roc_auc_score(wrong, a), "brier": np.mean((a - wrong) ** 2)}
    truth["difference"] = truth["auroc"] - sk.roc_auc_score(wrong, b)
    hits = dict.fromkeys([*truth, "row"], 0)
    repetitions = 400
    for _ in range(repetitions):
        group, wrong, a, b = clustered_draw(rng, 80, 5)
        sample = make(wrong, a, group=group)
        found = {
            "auroc": ranking.auroc(sample),
            "brier": probability.brier(sample),
            "difference": ranking.paired_auroc(sample, make(wrong, b, group=group)),
        }
        for name, estimate in found.items():
            hits[name] += estimate.lo <= truth[name] <= estimate.hi
        row = ranking.auroc(make(wrong, a))
        hits["row"] += row.lo <= truth["auroc"] <= row.hi
    coverage = {name: count / repetitions for name, count in hits.items()}
    for name in truth:
        assert 0.915 <= coverage[name] <= 0.98, coverage
    assert coverage["row"] < 0.9, coverage


def test_bootstrap_intervals_cover():
    rng = np.random.default_rng(6)
    _, wrong, a, _ = clustered_draw(rng, 100_000, 3)
    truth = ranking.Gains(a, wrong).recall(np.ones(len(a)), np.array([0.2]))[0]
    hits = 0
    for _ in range(60):
        group, wrong, a, _ = clustered_draw(rng, 80, 3)
        found = metrics_of(make(wrong, a, group=group))["recall_at_20pct"]
        hits += found.lo <= truth <= found.hi
    assert 0.86 <= hits / 60 <= 1.0


def test_ece_of_calibrated_scores_is_unbiased_and_of_shifted_ones_is_found():
    rng = np.random.default_rng(7)
    squares, plain, covered = [], [], 0
    for _ in range(300):
        p = rng.beta(2, 3, 400)
        s = make(rng.random(400) < p, p)
        bins = probability.reliability(s)
        squares.append((bins.mass * ((bins.score - bins.observed) ** 2 - bins.se**2)).sum())
        plain.append((bins.mass * abs(bins.score - bins.observed)).sum())
        covered += probability.ece_debiased(s).lo == 0
    assert np.mean(plain) > 0.04
    assert abs(np.mean(squares)) < 4 * np.std(squares) / math.sqrt(300)
    assert np.mean(np.sqrt(np.maximum(0, squares))) < 0.6 * np.mean(plain)
    assert covered >= 280
    hits = 0
    for _ in range(200):
        p = rng.uniform(0.1, 0.7, 500)
        shifted = probability.ece_debiased(make(rng.random(500) < p + 0.15, p))
        hits += shifted.lo <= 0.15 <= shifted.hi
    assert 0.88 <= hits / 200 <= 0.98


def test_calibration_intercept_and_slope_find_what_was_done():
    rng = np.random.default_rng(8)
    logit = rng.normal(0, 1.5, 6000)
    wrong = rng.random(6000) < 1 / (1 + np.exp(-logit))
    intercept, slope = probability.calibration_fit(make(wrong, 1 / (1 + np.exp(-2 * logit))))
    assert slope.lo < 0.5 < slope.hi < 0.56
    intercept, slope = probability.calibration_fit(make(wrong, 1 / (1 + np.exp(-(logit - 0.8)))))
    assert intercept.lo < 0.8 < intercept.hi
    assert slope.lo < 1 < slope.hi


# --- the table


class Fixed:
    model = "fixed"
    model_version = "1"

    def __init__(self, scores):
        self.scores = scores

    def score(self, traces):
        return [Score(self.scores[t.question], self.scores[t.question]) for t in traces]


def traces():
    rng = np.random.default_rng(9)
    labels = rng.choice(["wrong", "partial", "correct"], 150, p=[0.3, 0.2, 0.5])
    return [
        Trace(
            question=f"Question {i // 2}?",
            final_answer="a",
            label=label,
            failure_type="early_stop" if i % 5 == 0 else None,
            model="m",
            keep_probability=0.5 if i % 3 == 0 else None,
        )
        for i, label in enumerate(labels)
    ]


def test_predict_evaluate_and_the_table_on_disk(tmp_path):
    rows = [*traces(), Trace(question="Question 0?", final_answer="no label")]
    rng = np.random.default_rng(10)
    seen = []
    scores = {t.question: float(rng.random()) for t in rows}
    table = predict("fixed", Fixed(scores), rows, progress=lambda what, done: seen.append((what, done)))
    assert seen[-1] == ("scoring with fixed", 1.0)
    assert table.schema == PREDICTION_SCHEMA
    write_predictions(tmp_path / "p.parquet", table)
    assert read_predictions(tmp_path / "p.parquet").equals(table)

    found = evaluate(table, "fixed")
    assert found["all"]["auroc"].n == 150
    assert found["seeded"]["auroc"].n == 30
    assert found["natural"]["auroc_no_partial"].n == sum(
        t.label in ("wrong", "correct") and t.failure_type is None for t in rows
    )
    text = json.dumps({s: {k: e.to_json() for k, e in m.items()} for s, m in found.items()}, allow_nan=False)
    assert json.loads(text)["all"]["auroc_within_agent"]["reason"] == "all traces are of one agent"


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (["wrong"] * 5, "all of these traces are wrong"),
        (["correct"] * 5, "none of these traces is wrong"),
        ([None] * 5, "there are no such traces"),
    ],
)
def test_what_cannot_be_computed_has_a_reason_and_no_number(labels, reason):
    rows = [Trace(question=str(i), final_answer="", label=label) for i, label in enumerate(labels)]
    found = evaluate(predict("f", Fixed({str(i): 0.5 for i in range(5)}), rows), "f")
    assert (found["all"]["auroc"].value, found["all"]["auroc"].reason) == (None, reason)
    assert found["seeded"]["auroc"].reason == "there are no such traces"
    for metrics in found.values():
        json.dumps({name: e.to_json() for name, e in metrics.items()}, allow_nan=False)


def test_two_traces_give_values_without_intervals():
    found = metrics_of(make([True, False], [0.8, 0.3]))
    assert found["auroc"].value == 1.0
    assert found["auroc"].lo is None
    assert found["ece_debiased"].reason == "fewer than 40 traces"


def test_scorers_that_do_not_exist_or_do_not_score_are_named(tmp_path):
    with pytest.raises(ObserverError, match="scored trace row:0 with nan"):
        predict("f", Fixed({"q": float("nan")}), [Trace(question="q", final_answer="")])
    table = predict("f", Fixed({"q": 0.1}), [Trace(question="q", final_answer="", label="wrong")])
    with pytest.raises(InputError, match="no predictions of 'g'; these are from f"):
        evaluate(table, "g")
    write_predictions(tmp_path / "x.parquet", table.drop_columns(["group"]))
    with pytest.raises(InputError, match="lacks the column group"):
        read_predictions(tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read predictions"):
        read_predictions(tmp_path / "y.parquet")


def test_pairing_joins_by_trace_and_counts_repeated_ids():
    rows = [
        Trace(question=q, final_answer="", label="wrong", trace_id=i) for q, i in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    a = predict("a", Fixed({"a": 0.1, "b": 0.2, "c": 0.3}), rows)
    b = predict("b", Fixed({"a": 0.4, "b": 0.5, "c": 0.6}), [rows[2], rows[0], rows[1]])
    both = pa.concat_tables([a, b])
    left, right = pair(sample_of(both, "a"), sample_of(both, "b"))
    assert list(zip(left.p, right.p, strict=True)) == [(0.1, 0.4), (0.2, 0.5), (0.3, 0.6)]
    assert list(left.group) == list(right.group)
