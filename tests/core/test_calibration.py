"""Calibration: how each method is applied and fitted, and which one is chosen."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from observer_core.decision.calibration import METHODS, apply_calibration, calibrate, logit, sigmoid
from observer_core.decision.calibration_fit import (
    fit_calibration,
    fit_isotonic,
    fit_platt,
    fit_temperature,
)
from observer_core.decision.scorer import RunScorer
from observer_core.errors import InputError
from observer_core.questions import default_questions
from observer_core.rundir import Calibration, Manifest
from observer_core.traces.trace import Trace


def manifest(**fields: object) -> Manifest:
    return Manifest(model="m", questions=default_questions(), **fields)  # pyright: ignore[reportArgumentType]


def questions(n: int, *, rows_each: int = 1) -> list[Trace]:
    return [Trace(f"question {i // rows_each}", "answer") for i in range(n)]


def drawn(n: int, truth: Callable[[np.ndarray], np.ndarray], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Raw probabilities, and labels drawn with the probability `truth` gives their logits."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 2, n)
    return sigmoid(x), rng.random(n) < truth(x)


def test_platt_recovers_the_true_slope_and_bias():
    p, wrong = drawn(50_000, lambda x: sigmoid(0.6 * x - 1.2))
    fitted = fit_platt(p, wrong, np.ones(len(p)))
    assert fitted.parameters["slope"] == pytest.approx(0.6, abs=0.03)
    assert fitted.parameters["bias"] == pytest.approx(-1.2, abs=0.03)
    assert apply_calibration(p, fitted).mean() == pytest.approx(wrong.mean(), abs=1e-3)


def test_temperature_recovers_the_true_temperature():
    p, wrong = drawn(50_000, lambda x: sigmoid(x / 2.5))
    assert fit_temperature(p, wrong, np.ones(len(p))).parameters["temperature"] == pytest.approx(2.5, abs=0.1)
    backwards = fit_temperature(1 - p, wrong, np.ones(len(p)))
    assert backwards.parameters["temperature"] == pytest.approx(20.0), "as flat as it gets, never turned around"


@pytest.mark.parametrize("fit", [fit_platt, fit_temperature, fit_isotonic])
def test_weights_mean_repetition(fit: Callable[..., Calibration]):
    p, wrong = drawn(500, sigmoid)
    times = np.where(wrong != (p > 0.5), 4, 1)
    heavy = apply_calibration(p, fit(p, wrong, times.astype(float)))
    repeated = apply_calibration(p, fit(p.repeat(times), wrong.repeat(times), np.ones(times.sum())))
    assert heavy == pytest.approx(repeated, abs=0.005)
    assert np.abs(heavy - apply_calibration(p, fit(p, wrong, np.ones(len(p))))).max() > 0.1


def test_platt_stays_finite_when_separable_and_never_turns_a_ranking_around():
    p = np.array([0.1, 0.2, 0.8, 0.9])
    separable = fit_platt(p, p > 0.5, np.ones(4))
    assert 0 < separable.parameters["slope"] < 10
    backwards = fit_platt(p, p < 0.5, np.ones(4))
    assert backwards.parameters["slope"] == 0
    assert apply_calibration(p, backwards) == pytest.approx(np.full(4, 0.5))
    with pytest.raises(InputError, match="4 wrong and 0 correct"):
        fit_platt(p, np.ones(4, bool), np.ones(4))


def test_isotonic_is_pool_adjacent_violators():
    p, wrong = drawn(4000, lambda x: np.where(x > 0, 0.8, 0.2))
    p = p.round(3)  # ties
    weight = np.random.default_rng(1).uniform(0.5, 2, len(p))
    fitted = fit_isotonic(p, wrong, weight)
    oracle = IsotonicRegression().fit(p, wrong, sample_weight=weight)
    steps = oracle.predict(sigmoid(np.array(fitted.parameters["x"])))
    assert fitted.parameters["y"][1:-1] == pytest.approx(steps[1:-1], abs=1e-9)
    assert 0 < fitted.parameters["y"][0] < fitted.parameters["y"][-1] < 1, "no step is certain"


def test_isotonic_keeps_the_ranking_where_it_is_level_and_is_clipped_at_its_ends():
    p, wrong = drawn(3000, lambda x: np.where(x > 0, 0.8, 0.2))
    fitted = fit_isotonic(p, wrong, np.ones(len(p)))
    out = apply_calibration(np.linspace(0, 1, 101), fitted)
    assert all(low < high for low, high in pairwise(out))
    assert out[0] == pytest.approx(fitted.parameters["y"][0], abs=1e-5)
    assert out[-1] == pytest.approx(fitted.parameters["y"][-1], abs=1e-5)


@pytest.mark.parametrize(
    ("truth", "chosen"),
    [
        (lambda x: sigmoid(x), "none"),
        (lambda x: sigmoid(x / 3), "temperature"),
        (lambda x: sigmoid(x - 1.5), "platt"),
        (lambda x: 0.1 + 0.5 * (x > -1) + 0.3 * (x > 1.5), "isotonic"),
    ],
)
def test_the_method_that_fits_is_chosen_out_of_fold(truth: Callable[[np.ndarray], np.ndarray], chosen: str):
    p, wrong = drawn(6000, truth, seed=3)
    fitted = fit_calibration(p, questions(len(p)), wrong, np.ones(len(p)))
    table = fitted.parameters["out_of_fold"]["methods"]
    assert set(table) == set(METHODS)
    best = min(table, key=lambda method: table[method]["log_loss"]["value"])
    assert table[fitted.method]["log_loss"]["value"] <= table[best]["log_loss"]["value"] + 1e-9
    # a method that contains the true one may win by chance; one that does not must lose
    assert list(METHODS).index(fitted.method) >= list(METHODS).index(chosen)
    assert table[fitted.method]["calibration_slope"]["value"] == pytest.approx(1, abs=0.1)
    assert table[fitted.method]["calibration_intercept"]["value"] == pytest.approx(0, abs=0.1)
    assert table[fitted.method]["ece_debiased"]["lo"] < 0.02


def test_what_is_reported_was_not_fitted_on():
    """Scores that mean nothing: fitted and tested on the same rows a calibration looks better than knowing nothing."""
    rng = np.random.default_rng(0)
    p, wrong = rng.random(60), rng.random(60) < 0.5
    fitted = fit_calibration(p, questions(60), wrong, np.ones(60))
    platt = fitted.parameters["out_of_fold"]["methods"]["platt"]["log_loss"]["value"]
    again = apply_calibration(p, fit_platt(p, wrong, np.ones(60)))
    in_sample = float(-np.log(np.where(wrong, again, 1 - again)).mean())
    assert in_sample < np.log(2) < platt


def test_folds_keep_the_traces_of_a_question_together():
    """Every question twice with one label: a fold that held one twin would let isotonic know the other."""
    rng = np.random.default_rng(0)
    p = np.repeat(rng.random(800), 2)
    wrong = np.repeat(rng.random(800) < 0.5, 2)
    fitted = fit_calibration(p, questions(1600, rows_each=2), wrong, np.ones(1600))
    assert fitted.parameters["questions"] == 800
    assert fitted.parameters["out_of_fold"]["methods"]["isotonic"]["log_loss"]["value"] > np.log(2)


@pytest.mark.parametrize(("rows", "weight"), [(999, 1.0), (3000, 500.0)], ids=["few rows", "few heavy rows"])
def test_isotonic_needs_a_thousand_effective_rows(rows: int, weight: float):
    p, wrong = drawn(rows, sigmoid)
    weights = np.where(np.arange(rows) < 40, weight, 1.0)
    fitted = fit_calibration(p, questions(rows), wrong, weights)
    said = fitted.parameters["out_of_fold"]["methods"]["isotonic"]
    assert said == {"not_offered": f"{(weights.sum() ** 2 / (weights**2).sum()):.0f} effective rows; 1000 are needed"}
    assert fitted.parameters["n_effective"] < 1000


def test_too_few_questions_to_hold_some_out_means_platt():
    p, wrong = np.array([0.2, 0.4, 0.7, 0.9]), np.array([False, True, False, True])
    fitted = fit_calibration(p, [Trace("one question", "a")] * 4, wrong, np.ones(4))
    assert fitted.method == "platt"
    assert all("not_offered" in said for said in fitted.parameters["out_of_fold"]["methods"].values())


def test_a_fitted_calibration_travels_through_the_manifest():
    p, wrong = drawn(2000, lambda x: 0.1 + 0.5 * (x > -1) + 0.3 * (x > 1.5))
    for fitted in (
        fit_calibration(p, questions(len(p)), wrong, np.ones(len(p))),
        fit_isotonic(p, wrong, np.ones(len(p))),
    ):
        before = manifest(calibration=fitted)
        after = Manifest.model_validate_json(before.to_json())
        assert (calibrate(p, after) == calibrate(p, before)).all()


def test_old_manifests_use_their_temperature_exactly():
    p = np.array([0.0, 1e-7, 0.3, 1.0])
    out = calibrate(p, manifest(temperatures={"answer_wrong": 0.86}))
    clamped = np.clip(p, 1e-6, 1 - 1e-6)
    assert out == pytest.approx(1 / (1 + np.exp(-np.log(clamped / (1 - clamped)) / 0.86)), abs=1e-15)
    assert calibrate(p, manifest()) is p
    assert np.isfinite(logit(p)).all()


@pytest.mark.parametrize(
    ("method", "parameters", "problem"),
    [
        ("magic", {}, "unknown calibration method 'magic'; this version knows none, temperature, platt, isotonic"),
        ("platt", {"slope": 1.0}, "no usable 'bias'"),
        ("platt", {"slope": float("nan"), "bias": 0.0}, "no usable 'slope'"),
        ("platt", {"slope": True, "bias": 0.0}, "no usable 'slope'"),
        ("platt", {"slope": -1.0, "bias": 0.0}, "turns the ranking around"),
        ("temperature", {"temperature": 0}, "not above 0"),
        ("temperature", {}, "no usable 'temperature'"),
        ("isotonic", {"x": [0.0], "bias": 0.0}, "no usable 'y'"),
        ("isotonic", {"x": [0.0, 1.0], "y": [0.5], "bias": 0.0}, "no rising curve"),
        ("isotonic", {"x": [0.0, 1.0], "y": [0.5, 0.4], "bias": 0.0}, "no rising curve"),
        ("isotonic", {"x": [1.0, 0.5], "y": [0.4, 0.5], "bias": 0.0}, "no rising curve"),
        ("isotonic", {"x": [0.0, 1.0], "y": [0.4, 1.5], "bias": 0.0}, "no rising curve"),
        ("isotonic", {"x": [0.0, "1"], "y": [0.4, 0.5], "bias": 0.0}, "no usable 'x'"),
    ],
)  # fmt: skip
def test_unusable_calibrations_are_refused(method: str, parameters: dict, problem: str):
    with pytest.raises(InputError, match=problem):
        apply_calibration(np.array([0.5]), Calibration(method=method, parameters=parameters))
    with pytest.raises(InputError, match=problem):  # where a run is loaded, not at its first trace
        RunScorer(manifest(calibration=Calibration(method=method, parameters=parameters)), "1", lambda _: [])
