"""Calibration, the baseline and the built-in heuristic."""

from pathlib import Path

import numpy as np
import pytest

from observer_core.decision.baseline import FEATURES, BaselineModel, featurise
from observer_core.decision.builtin import BuiltinScorer
from observer_core.decision.calibration import calibrate, fit_platt, logit, sigmoid
from observer_core.errors import InputError
from observer_core.questions import default_questions
from observer_core.rundir import Calibration, Manifest
from observer_core.traces.trace import ToolCall, Trace


def manifest(**fields: object) -> Manifest:
    return Manifest(model="m", questions=default_questions(), **fields)  # pyright: ignore[reportArgumentType]


def test_platt_recovers_the_true_slope_and_bias():
    rng = np.random.default_rng(0)
    x = rng.normal(0, 2, 50_000)
    wrong = rng.random(50_000) < sigmoid(0.6 * x - 1.2)
    fitted = fit_platt(sigmoid(x), wrong, np.ones(50_000))
    assert fitted.parameters["slope"] == pytest.approx(0.6, abs=0.03)
    assert fitted.parameters["bias"] == pytest.approx(-1.2, abs=0.03)
    assert calibrate(sigmoid(x), manifest(calibration=fitted)).mean() == pytest.approx(wrong.mean(), abs=1e-3)


def test_platt_weights_mean_repetition():
    p, wrong = np.array([0.2, 0.4, 0.7, 0.9]), np.array([False, True, False, True])
    heavy = fit_platt(p, wrong, np.array([3.0, 1.0, 1.0, 1.0]))
    light = fit_platt(p, wrong, np.ones(4))
    assert calibrate(p, manifest(calibration=heavy)).mean() < calibrate(p, manifest(calibration=light)).mean()


def test_platt_stays_finite_when_separable_and_never_turns_a_ranking_around():
    p = np.array([0.1, 0.2, 0.8, 0.9])
    separable = fit_platt(p, p > 0.5, np.ones(4))
    assert 0 < separable.parameters["slope"] < 10
    backwards = fit_platt(p, p < 0.5, np.ones(4))
    assert backwards.parameters["slope"] == 0
    assert calibrate(p, manifest(calibration=backwards)) == pytest.approx(np.full(4, 0.5))
    with pytest.raises(InputError, match="4 wrong and 0 correct"):
        fit_platt(p, np.ones(4, bool), np.ones(4))


def test_old_manifests_use_their_temperature_exactly():
    p = np.array([0.0, 1e-7, 0.3, 1.0])
    out = calibrate(p, manifest(temperatures={"answer_wrong": 0.86}))
    clamped = np.clip(p, 1e-6, 1 - 1e-6)
    assert out == pytest.approx(1 / (1 + np.exp(-np.log(clamped / (1 - clamped)) / 0.86)), abs=1e-15)
    assert calibrate(p, manifest()) is p
    assert np.isfinite(logit(p)).all()


@pytest.mark.parametrize(
    "calibration",
    [Calibration(method="magic"), Calibration(method="platt", parameters={"slope": 1.0}),
     Calibration(method="platt", parameters={"slope": float("nan"), "bias": 0.0})],
)  # fmt: skip
def test_unusable_calibrations_are_refused(calibration: Calibration):
    with pytest.raises(InputError, match=r"magic|bias|slope"):
        calibrate(np.array([0.5]), manifest(calibration=calibration))


ODD = [
    Trace("", ""),
    Trace(
        "How many?", "No idea, not found", tool_calls=[ToolCall("s", {"q": 1}, None), ToolCall("s", {"q": 1}, "error")]
    ),
    Trace("Is it?", "yes", evidence=[""]),
    Trace("Wer?", "𝄞 123,45", evidence=["x" * 100_000]),
]


def test_features_are_finite_for_every_trace():
    assert np.isfinite(featurise(ODD)).all()
    assert featurise([]).shape == (0, len(FEATURES))
    values = dict(zip(FEATURES, featurise(ODD)[1], strict=True))
    assert values["refusal"] == values["quantity_without_number"] == values["last_call_failed"] == 1
    assert values["repeated_calls"] > 0


def test_baseline_learns_saves_and_loads(tmp_path: Path):
    rng = np.random.default_rng(1)
    traces = [Trace("Who?", "Ann" if ok else "Bob, not found", evidence=["Ann did it"]) for ok in rng.random(80) < 0.5]
    wrong = np.array([t.final_answer != "Ann" for t in traces])
    model = BaselineModel.fit(traces, wrong, np.ones(80))
    p = model.p_wrong_raw(traces)
    assert p[wrong].min() > p[~wrong].max()
    model.save(tmp_path)
    assert (BaselineModel.load(tmp_path).p_wrong_raw(traces) == p).all()
    with pytest.raises(InputError, match="one class"):
        BaselineModel.fit(traces, np.ones(80, bool), np.ones(80))


@pytest.mark.parametrize("damage", [None, "{", "{}", "nan", "feature"])
def test_broken_baselines_name_their_file(tmp_path: Path, damage: str | None):
    zero = dict.fromkeys(FEATURES, 0.0)
    BaselineModel(zero, dict.fromkeys(FEATURES, 1.0), zero, 0.5).save(tmp_path)
    file = tmp_path / "baseline.json"
    if damage is None:
        file.unlink()
    elif damage == "nan":
        file.write_text(file.read_text().replace("0.5", "NaN"))
    elif damage == "feature":
        file.write_text(file.read_text().replace("refusal", "refused"))
    else:
        file.write_text(damage)
    with pytest.raises(InputError, match=r"baseline\.json"):
        BaselineModel.load(tmp_path)


def test_builtin_ranks_a_refusal_above_a_supported_answer():
    good = Trace("Who?", "Ann", evidence=["Ann did it"])
    bad = Trace("Who?", "I could not find it", evidence=["Ann did it"])
    low, high = BuiltinScorer().score([good, bad])
    assert low.p_wrong < high.p_wrong
    assert BuiltinScorer().model == "builtin"
