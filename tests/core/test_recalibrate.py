"""The refit of a run's bias from live verdicts, on a run whose scores are known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from metrics.test_evaluation_cli import traces as labeled
from typer.testing import CliRunner

from observer_core.decision.calibration import calibrate, logit, sigmoid
from observer_core.decision.load import load_scorer, replay_golden
from observer_core.decision.recalibrate import estimate_shift, refit_bias, shifted, usable_verdicts
from observer_core.decision.train import TrainOptions, train_run
from observer_core.errors import InputError
from observer_core.metrics.predictions import read_predictions
from observer_core.questions import default_questions
from observer_core.rundir import MANIFEST, PREDICTIONS, Calibration, Manifest, RunDirectory, open_run
from observer_core.traces.jsonl import write_jsonl
from observer_core.traces.splits import split_of
from observer_core.traces.trace import Trace
from observer_pipeline.cli import build_app


def verdicts(wrong: np.ndarray, keep: np.ndarray, review: np.ndarray) -> list[Trace]:
    return [
        Trace(
            f"live {i}", "a", label="wrong" if w else "correct", keep_probability=float(k), review_probability=float(r)
        )
        for i, (w, k, r) in enumerate(zip(wrong, keep, review, strict=True))
    ]


def test_the_shift_of_the_prior_is_recovered_from_what_a_policy_and_reviewers_leave() -> None:
    """Half of the training traces were wrong, a tenth of live traffic is; kept for certain above 0.7, 2 % below; people
    see all of the former and half of the latter. Bayes: every logit moves by log(0.1/0.9) − log(0.5/0.5)."""
    rng = np.random.default_rng(0)
    wrong = rng.random(200_000) < 0.1
    p = sigmoid(np.where(wrong, 1.0, -1.0) + rng.normal(0, np.sqrt(2), len(wrong)))  # calibrated where half is wrong
    keep = np.where(p > 0.7, 1.0, 0.02)
    review = np.where(p > 0.7, 0.05, 0.5)
    seen = rng.random(len(p)) < keep * review
    refit = estimate_shift(p[seen], verdicts(wrong[seen], keep[seen], review[seen]))
    assert refit.shift.value == pytest.approx(np.log(0.1 / 0.9), abs=0.15)
    assert refit.shift.lo is not None
    assert refit.shift.hi is not None
    assert refit.shift.lo < np.log(0.1 / 0.9) < refit.shift.hi
    assert refit.after == pytest.approx(0.1, abs=0.01)
    assert refit.before > 0.25
    unweighted = [
        replace(t, keep_probability=1.0, review_probability=1.0)
        for t in verdicts(wrong[seen], keep[seen], review[seen])
    ]
    assert estimate_shift(p[seen], unweighted).after > 0.2, "what a plain share would say"


@pytest.mark.parametrize(
    "calibration",
    [
        None,
        Calibration(method="none"),
        Calibration(method="temperature", parameters={"temperature": 2.0}),
        Calibration(method="platt", parameters={"slope": 0.5, "bias": 1.0, "n": 100}),
        Calibration(method="isotonic", parameters={"x": [-1.0, 0.0, 2.0], "y": [0.1, 0.3, 0.9], "bias": 0.0}),
    ],
)
def test_the_shift_is_added_to_every_logit_whatever_the_method(calibration: Calibration | None) -> None:
    temperatures = {"answer_wrong": 0.86} if calibration is None else {}
    before = Manifest(model="m", questions=default_questions(), calibration=calibration, temperatures=temperatures)
    rng = np.random.default_rng(1)
    p = rng.random(400)
    refit = estimate_shift(calibrate(p, before), verdicts(rng.random(400) < 0.1, np.ones(400), np.ones(400)))
    after = before.model_copy(update={"calibration": shifted(before, refit)})
    moved = logit(calibrate(p, after)) - logit(calibrate(p, before))
    assert moved == pytest.approx(np.full(400, refit.shift.value), abs=1e-6)
    assert calibrate(p, after).mean() == pytest.approx(refit.after)


def test_only_verdicts_of_known_selection_and_unseen_questions_count() -> None:
    known = [Trace(f"q{i}", "a", label="wrong", keep_probability=0.5, review_probability=0.5) for i in range(100)]
    others = [
        Trace("no verdict", "a", keep_probability=0.5, review_probability=0.5),
        Trace("gold", "a", label="wrong"),
        Trace("opened by itself", "a", label="wrong", keep_probability=1.0),
    ]
    found = usable_verdicts(known + others)
    assert found.unrecorded == 2
    assert {split_of(trace) for trace in found.traces} == {"validation", "calibration"}
    assert len(found.traces) + found.seen == 100
    assert len(usable_verdicts(known + others, all_questions=True).traces) == 100


@pytest.mark.parametrize(("wrong", "n"), [(4, 100), (96, 100), (8, 16), (0, 0)])
def test_too_few_verdicts_refit_nothing(wrong: int, n: int) -> None:
    with pytest.raises(InputError, match="too few to refit a bias"):
        estimate_shift(np.full(n, 0.5), verdicts(np.arange(n) < wrong, np.ones(n), np.ones(n)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train_run(labeled(1), tmp_path_factory.mktemp("bias") / "run", TrainOptions(family="baseline"))


def live() -> list[Trace]:
    """Traffic in which one answer of eight is wrong, as kept and reviewed at random."""
    found = []
    for i, trace in enumerate(labeled(7, questions=900)):
        if trace.label == "wrong" and i % 6:
            continue
        found.append(replace(trace, keep_probability=0.02, review_probability=0.5))
    return found


def test_a_new_run_carries_the_bias_and_the_old_one_stays(run: RunDirectory, tmp_path: Path) -> None:
    before = (run.path / MANIFEST).read_bytes()
    made, refit, counted = refit_bias(run, live(), tmp_path / "again")
    assert (run.path / MANIFEST).read_bytes() == before
    assert made.version != run.version
    assert made.manifest.init_from == f"{run.path.name}@{run.version}"
    assert made.manifest.calibration is not None
    assert made.manifest.calibration.fitted_on == "calibration; bias: live verdicts"
    assert made.manifest.calibration.parameters["bias_refit"]["shift"]["n"] == len(counted.traces)
    replay_golden(load_scorer(made), made)
    probe = labeled(3, questions=20)
    old, new = load_scorer(run).score(probe), load_scorer(made).score(probe)
    moved = [logit(np.array(n.p_wrong)) - logit(np.array(o.p_wrong)) for o, n in zip(old, new, strict=True)]
    assert moved == pytest.approx([refit.shift.value] * len(probe), abs=1e-6)
    assert [n.p_wrong_raw for n in new] == [o.p_wrong_raw for o in old]
    scores = [logit(np.array(of.manifest.validation_scores)) for of in (made, run)]
    assert scores[0] - scores[1] == pytest.approx(np.full(len(scores[0]), refit.shift.value), abs=1e-3)
    rows = read_predictions(made.path / PREDICTIONS).to_pylist()
    assert [row["p_wrong"] for row in rows] == pytest.approx(
        calibrate(np.array([row["p_wrong_raw"] for row in rows]), made.manifest).tolist()
    )
    assert made.metrics()["all"]["auroc"] == run.metrics()["all"]["auroc"], "the ranking is the same"
    assert made.metrics()["all"]["brier"]["value"] > run.metrics()["all"]["brier"]["value"], (
        "another share is wrong there"
    )


def test_the_command_says_what_it_did(run: RunDirectory, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "verdicts.jsonl", [*live(), Trace("gold", "a", label="wrong")])
    out = tmp_path / "again"
    given = [
        "calibrate",
        "--run",
        str(run.path),
        "--data",
        str(tmp_path / "verdicts.jsonl"),
        "--out",
        str(out),
        "--json",
    ]
    result = CliRunner().invoke(build_app(), given, catch_exceptions=False)
    said = json.loads(result.stdout)
    assert said["version"] == open_run(out).version
    assert said["shift"]["hi"] < 0
    assert said["mean_after"] < said["mean_before"]
    assert said["left_out"]["unrecorded"] == 1


def test_verdicts_that_do_not_count_are_explained(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none of the 2 traces is a verdict that counts: 2 without a recorded keep"):
        refit_bias(run, [Trace("gold", "a", label="wrong")] * 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()
