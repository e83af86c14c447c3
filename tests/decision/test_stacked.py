"""The family stacked: made from a trained run, self-contained, served like any other."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from decision.conftest import easy_traces
from typer.testing import CliRunner

from observer_core.decision.baseline import FEATURES, BaselineModel, featurise
from observer_core.decision.calibration import logit, sigmoid
from observer_core.decision.load import load_scorer, replay_golden
from observer_core.decision.scorer import RawScore, RawScorer
from observer_core.decision.stack import _Inputs, stack_run
from observer_core.decision.stacked import LAYER_FILE, StackedLayer, stacked_scorer
from observer_core.errors import InputError
from observer_core.metrics.evaluate import evaluate
from observer_core.metrics.predictions import read_predictions, scorers_of
from observer_core.rundir import CHECKPOINT, PREDICTIONS, STACKED_BASE, RunDirectory, open_run
from observer_core.traces.jsonl import write_jsonl
from observer_core.traces.trace import ToolCall, Trace
from observer_pipeline.cli import build_app


@pytest.fixture(scope="module")
def stacked(laya_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return stack_run(laya_run, easy_traces(240), tmp_path_factory.mktemp("stacked") / "both")


def test_the_layer_is_one_logistic_regression(stacked: RunDirectory, laya_run: RunDirectory) -> None:
    traces = easy_traces(12, seed=5)
    layer = StackedLayer.load(stacked.checkpoint)
    base, both = load_scorer(laya_run).score(traces), load_scorer(stacked).score(traces)
    by_hand = [
        layer.model * float(logit(np.array(score.p_wrong_raw)))
        + sum(
            layer.coefficient[name] * (x - layer.mean[name]) / layer.scale[name]
            for name, x in zip(FEATURES, row, strict=True)
        )
        + layer.intercept
        for score, row in zip(base, featurise(traces).tolist(), strict=True)
    ]
    assert [score.p_wrong_raw for score in both] == pytest.approx(sigmoid(np.array(by_hand)).tolist(), abs=1e-6)
    assert [score.answers for score in both] == [score.answers for score in base], "the other answers are passed on"


def test_it_is_evaluated_beside_its_parts(stacked: RunDirectory, laya_run: RunDirectory) -> None:
    manifest = stacked.manifest
    assert (manifest.family, manifest.model) == ("stacked", f"stacked-{laya_run.manifest.model}")
    assert manifest.init_from == f"{laya_run.path.name}@{laya_run.version}"
    assert manifest.train_data_sha == laya_run.manifest.train_data_sha
    predictions = read_predictions(stacked.path / PREDICTIONS)
    assert scorers_of(predictions) == [manifest.model, laya_run.manifest.model, "baseline"]
    own = evaluate(predictions, manifest.model)["all"]
    saved = {name: entry["value"] for name, entry in stacked.metrics()["all"].items()}
    assert saved.keys() == laya_run.metrics()["all"].keys(), "the same keys for every scorer"
    assert {name: saved[name] for name in own} == {name: estimate.value for name, estimate in own.items()}
    assert manifest.calibration is not None
    assert manifest.calibration.fitted_on == "calibration"


def test_it_stands_alone_and_replays(stacked: RunDirectory, tmp_path: Path) -> None:
    """Moved elsewhere, without the run it was made of, in a process that may not import torch."""
    moved = tmp_path / "moved"
    shutil.copytree(stacked.path, moved)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from observer_core.decision.load import load_scorer, replay_golden\n"
        "from observer_core.rundir import open_run\n"
        f"run = open_run(Path({str(moved)!r})); replay_golden(load_scorer(run), run); print('replayed')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "replayed"
    replay_golden(load_scorer(open_run(moved), backend="torch"), open_run(moved))


@pytest.mark.parametrize("damage", ["missing", "nan", "feature", "scale", "text"])
def test_a_broken_layer_is_named(stacked: RunDirectory, tmp_path: Path, damage: str) -> None:
    file = tmp_path / LAYER_FILE
    body = json.loads((stacked.checkpoint / LAYER_FILE).read_text())
    if damage == "nan":
        body["coefficient"]["refusal"] = float("nan")
    elif damage == "feature":
        body["mean"]["refused"] = body["mean"].pop("refusal")
    elif damage == "scale":
        body["scale"]["refusal"] = 0
    if damage != "missing":
        file.write_text("{" if damage == "text" else json.dumps(body))
    with pytest.raises(InputError, match=r"stacked\.json"):
        StackedLayer.load(tmp_path)


def test_an_altered_file_of_its_model_is_refused(stacked: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(stacked.path, tmp_path / "run")
    weights = next((tmp_path / "run" / CHECKPOINT / STACKED_BASE / CHECKPOINT).glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InputError, match="is not the file this run was saved with"):
        load_scorer(open_run(tmp_path / "run"))


def test_only_models_that_read_are_stacked(stacked: RunDirectory, baseline_run: RunDirectory, tmp_path: Path) -> None:
    for run in (stacked, baseline_run):
        with pytest.raises(InputError, match=f"is a {run.manifest.family} run; stack a run of kev or laya"):
            stack_run(run, easy_traces(240), tmp_path / "out")


def two_sources(n: int, seed: int = 0) -> tuple[list[Trace], np.ndarray, RawScorer]:
    """Half of what makes an answer wrong shows in its calls, the other half only to the model."""
    rng = random.Random(seed)
    traces, p_model = [], {}
    for i in range(n):
        read, happened = rng.gauss(0, 1.5), rng.random() < 0.5
        wrong = rng.random() < float(sigmoid(np.array(read + (1.5 if happened else -1.5))))
        status = "error" if happened else "ok"
        trace = Trace(
            f"question {i}", "Ann", trace_id=str(i), tool_calls=[ToolCall("search", {"q": i}, status)],
            evidence=["Ann did it"], label="wrong" if wrong else "correct",
        )  # fmt: skip
        traces.append(trace)
        p_model[str(i)] = float(sigmoid(np.array(read)))

    def model(traces: Sequence[Trace], *, only_deciding: bool = True) -> list[RawScore]:
        return [RawScore(p_model[str(t.trace_id)]) for t in traces]

    return traces, np.array([t.is_wrong for t in traces]), model


def test_the_stack_finds_what_either_part_misses() -> None:
    traces, wrong, model = two_sources(3000)
    train, fitting, test = slice(0, 1000), slice(1000, 1200), slice(1200, 3000)
    ones = np.ones(len(traces))
    baseline = BaselineModel.fit(traces[train], wrong[train], ones[train])
    p_model = np.array([score.p_wrong_raw for score in model(traces)])
    inputs = _Inputs(baseline, p_model[fitting], traces[fitting])
    penalty, held_out = inputs.choose_penalty(wrong[fitting], ones[fitting])
    layer = inputs.layer(wrong[fitting], ones[fitting], penalty)

    def brier(p: np.ndarray) -> float:
        return float(((p - wrong[test]) ** 2).mean())

    stacked = np.array([score.p_wrong_raw for score in stacked_scorer(layer, model)(traces[test])])
    truth = brier(
        sigmoid(
            logit(p_model[test]) + np.array([1.5 if t.tool_calls[0].status == "error" else -1.5 for t in traces[test]])
        )
    )
    assert brier(stacked) < min(brier(p_model[test]), brier(baseline.p_wrong_raw(traces[test]))) - 0.02
    assert brier(stacked) < truth + 0.01, "as good as knowing how the labels were drawn"
    assert layer.model == pytest.approx(1.0, abs=0.35)
    loss = -np.log(np.where(wrong[fitting], held_out, 1 - held_out)).mean()
    again = np.array([score.p_wrong_raw for score in stacked_scorer(layer, model)(traces[fitting])])
    assert loss > -np.log(np.where(wrong[fitting], again, 1 - again)).mean(), "calibrated on rows it was not fitted on"


def test_a_model_that_knows_nothing_is_left_aside() -> None:
    traces, wrong, _ = two_sources(1200)
    noise = np.random.default_rng(0).random(len(traces))
    ones = np.ones(len(traces))
    baseline = BaselineModel.fit(traces[:800], wrong[:800], ones[:800])
    inputs = _Inputs(baseline, noise[800:], traces[800:])
    penalty, _ = inputs.choose_penalty(wrong[800:], ones[800:])
    layer = inputs.layer(wrong[800:], ones[800:], penalty)
    assert abs(layer.model) < 0.15
    p, alone = layer.p_wrong_raw(noise, traces), baseline.p_wrong_raw(traces)
    assert np.abs(p - alone).mean() < 0.05


def test_the_command(laya_run: RunDirectory, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data.jsonl", easy_traces(240))
    out = tmp_path / "out"
    given = ["stack", "--run", str(laya_run.path), "--data", str(tmp_path / "data.jsonl"), "--out", str(out)]
    result = CliRunner().invoke(build_app(), given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"stacked-{laya_run.manifest.model}" in result.stdout
    assert "baseline" in result.stdout
    with pytest.raises(InputError, match="exists already"):
        CliRunner().invoke(build_app(), given, catch_exceptions=False)
