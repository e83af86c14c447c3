"""Training and run directories: reproducible, it learns, nothing is dropped, broken runs are refused, no torch to serve."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from decision.conftest import easy_traces, quick
from decision.tiny import edit_json

from observer_core.decision.golden import golden_traces
from observer_core.decision.laya.checkpoint import load_checkpoint
from observer_core.decision.load import load_scorer, replay_golden
from observer_core.decision.train import TrainOptions, train_run
from observer_core.decision.training.batches import plan_batches
from observer_core.decision.training.data import MAX_WEIGHT, data_sha, split_traces
from observer_core.errors import InputError, ObserverError
from observer_core.rundir import MANIFEST, RunDirectory, open_run
from observer_core.traces.splits import split_of


def test_it_learns_an_easy_signal_and_the_run_is_whole(laya_run: RunDirectory) -> None:
    manifest = laya_run.manifest
    assert laya_run.metrics()["all"]["auroc"]["value"] > 0.9
    test = [trace for trace in easy_traces(240) if split_of(trace) == "test"]
    assert manifest.heldout["n"] == len(test)
    assert manifest.train_data_sha == data_sha([t for t in easy_traces(240) if split_of(t) == "train"])
    assert manifest.calibration is not None
    assert manifest.calibration.fitted_on == "calibration"
    assert manifest.validation_scores == sorted(manifest.validation_scores)
    assert (manifest.slice_spec["format"], manifest.slice_spec["max_tokens"]) == ("v2", 256)
    cut = [laya_run.metrics()["all"][f"state_truncated_{split}"]["value"] for split in ("train", "test")]
    assert all(0 <= share < 1 for share in cut)
    assert manifest.onnx["served"] == "model.onnx"
    assert 0 < manifest.latency_ms["p50"] <= manifest.latency_ms["p95"]
    expected = {"checkpoint/model.safetensors", "onnx/model.onnx", "metrics.json", "predictions.parquet", "report.html"}
    assert expected <= set(manifest.files)
    scores = load_scorer(laya_run).score(test)
    ranks = np.array([score.p_wrong for score in scores])
    wrong = np.array([trace.is_wrong for trace in test])
    assert ranks[wrong].min() > ranks[~wrong].mean()
    assert set(scores[0].answers) == {"answers_question"}


def test_both_scorers_are_in_the_predictions(laya_run: RunDirectory, baseline_run: RunDirectory) -> None:
    from observer_core.metrics.predictions import read_predictions, scorers_of

    assert scorers_of(read_predictions(laya_run.path / "predictions.parquet")) == ["laya-tiny", "baseline"]
    assert scorers_of(read_predictions(baseline_run.path / "predictions.parquet")) == ["baseline"]


def test_serving_an_exported_run_needs_no_torch(laya_run: RunDirectory) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from observer_core.decision.load import load_scorer, replay_golden\n"
        "from observer_core.rundir import open_run\n"
        "run = open_run(Path(sys.argv[1])); replay_golden(load_scorer(run), run)\n"
        "print([name for name in ('torch', 'transformers', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(laya_run.path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_golden_traces_replay_on_every_back_end(laya_run: RunDirectory, backend) -> None:
    assert len(laya_run.manifest.golden) == len(golden_traces())
    replay_golden(load_scorer(laya_run, backend=backend), laya_run)


def test_the_replay_asks_what_was_saved_and_all_questions_once(laya_run: RunDirectory) -> None:
    scorer = load_scorer(laya_run)
    raw, asked = scorer.raw, []

    def noting(traces, *, only_deciding: bool = False):
        scores = raw(traces, only_deciding=only_deciding)
        asked.append((len(traces), sum(len(score.answers) for score in scores)))
        return scores

    scorer.raw = noting
    replay_golden(scorer, laya_run)
    others = len(laya_run.manifest.questions) - 1
    assert others > 0
    assert asked == [(1, others), (len(golden_traces()) - 1, 0)]


def test_a_model_that_scores_differently_fails_the_replay(laya_run: RunDirectory, tmp_path: Path) -> None:
    run = copy_of(laya_run, tmp_path)
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["golden"][2]["p_wrong_raw"] += 3e-4
    (run / MANIFEST).write_text(json.dumps(manifest))
    opened = open_run(run)
    with pytest.raises(InputError, match="golden trace golden-no-calls scores"):
        replay_golden(load_scorer(opened), opened)


def test_the_state_that_does_not_fit_is_marked(laya_run: RunDirectory) -> None:
    short, long = golden_traces()[2], golden_traces()[-1]
    scores = load_scorer(laya_run).score([short, long])
    assert [score.state_truncated for score in scores] == [False, True]
    changed = dataclasses.replace(long, final_answer="red")
    assert load_scorer(laya_run).score([changed])[0].p_wrong_raw != scores[1].p_wrong_raw


def copy_of(run: RunDirectory, folder: Path) -> Path:
    shutil.copytree(run.path, folder / "copy")
    return folder / "copy"


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/tokenizer/tokenizer.json",
        "onnx/model.onnx",
        "onnx/model.onnx.data",
        "checkpoint/rl_agent_config.json",
    ],
)
@pytest.mark.parametrize("how", ["missing", "cut", "renamed"])
def test_broken_runs_are_refused(laya_run: RunDirectory, tmp_path: Path, name: str, how: str) -> None:
    file = copy_of(laya_run, tmp_path) / name
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    elif how == "renamed":
        file.rename(file.with_name("other"))
    else:
        file.unlink()
    with pytest.raises(InputError, match=file.name):
        load_scorer(open_run(tmp_path / "copy"))


def test_a_broken_graph_without_fingerprints_is_refused_too(laya_run: RunDirectory, tmp_path: Path) -> None:
    run = copy_of(laya_run, tmp_path)
    manifest = json.loads((run / MANIFEST).read_text()) | {"files": {}}
    (run / MANIFEST).write_text(json.dumps(manifest))
    (run / "onnx" / "model.onnx").write_bytes(b"\x08\x01 no graph")
    with pytest.raises(InputError, match=r"model\.onnx is not a usable ONNX graph"):
        load_scorer(open_run(run))


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_broken_weights_of_a_graph_without_fingerprints_are_refused_too(
    laya_run: RunDirectory, tmp_path: Path, how: str
) -> None:
    run = copy_of(laya_run, tmp_path)
    edit_json(run / MANIFEST, files={})
    weights = run / "onnx" / "model.onnx.data"
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-10])
    else:
        weights.unlink()
    with pytest.raises(InputError, match=r"model\.onnx is not a usable ONNX graph .*copy the run again"):
        load_scorer(open_run(run))


def test_a_graph_of_another_kind_is_refused(laya_run: RunDirectory, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    ids, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("past", "logits"))
    graph = helper.make_graph([helper.make_node("Identity", ["past"], ["logits"])], "other", [ids], [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "g.onnx")
    run = copy_of(laya_run, tmp_path)
    (tmp_path / "g.onnx").replace(run / "onnx" / "model.onnx")
    edit_json(run / MANIFEST, files={})
    with pytest.raises(InputError, match=r"model\.onnx is no graph of a Laya model \(input 'past'\)"):
        load_scorer(open_run(run))


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [
        ("onnx", "served", 5),
        ("onnx", "served", "../other.onnx"),
        ("slice", "max_tokens", "256"),
        ("slice", "max_tokens", 0),
        ("slice", "cut", "middle"),
        ("slice", "format", ["v2"]),
    ],
)
def test_manifests_that_say_something_unusable_are_refused(
    laya_run: RunDirectory, tmp_path: Path, field: str, name: str, value: object
) -> None:
    run = copy_of(laya_run, tmp_path)
    said = json.loads((run / MANIFEST).read_text())[field]
    edit_json(run / MANIFEST, **{field: said | {name: value}})
    with pytest.raises(InputError, match=f"{field}\\.{name}|unknown state {name}"):
        load_scorer(open_run(run))


def test_seed_manifests_load_as_manifests_and_say_what_cannot_be_loaded(tmp_path: Path) -> None:
    body = {
        "model": "kev-latest",
        "questions": {"answer_wrong": {"type": "noul"}},
        "temperatures": {"answer_wrong": 0.86},
    }
    (tmp_path / MANIFEST).write_text(json.dumps(body))
    with pytest.raises(InputError, match=r"head\.pt is missing"):
        load_scorer(open_run(tmp_path))


def test_the_baseline_is_a_run_of_its_own(baseline_run: RunDirectory) -> None:
    scorer = load_scorer(baseline_run)
    replay_golden(scorer, baseline_run)
    assert scorer.model == "baseline"
    assert list(baseline_run.manifest.questions) == ["answer_wrong"]
    (one,), both = scorer.score(golden_traces()[:1]), scorer.score(golden_traces()[:2])
    assert one == both[0]


def test_training_is_reproducible_and_the_seed_matters(tiny_encoder: Path, tmp_path: Path) -> None:
    traces = easy_traces(200)
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = train_run(traces, tmp_path / name, quick(tiny_encoder, epochs=1.0, seed=seed))
        weights.append((run.checkpoint / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_training_goes_on_from_an_earlier_run(laya_run: RunDirectory, tiny_encoder: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, float, int]] = []
    options = quick(tiny_encoder, init_from=laya_run.path, epochs=0.5, learning_rate=1e-5, head_learning_rate=1e-5)
    run = train_run(easy_traces(200, seed=1), tmp_path / "next", options, on_metric=lambda *metric: seen.append(metric))
    assert run.manifest.init_from == f"tiny@{laya_run.version}"
    assert run.metrics()["all"]["auroc"]["value"] > 0.9  # from scratch half an epoch at this rate learns nothing
    assert {name for name, _, _ in seen} >= {"train_loss", "validation_loss", "train_tokens_per_second"}
    before, after = load_checkpoint(laya_run.checkpoint)[0], load_checkpoint(run.checkpoint)[0]
    change = before.state_dict()["scorer.1.weight"] - after.state_dict()["scorer.1.weight"]
    assert 0 < float(change.abs().max()) < 0.01


def test_the_best_weights_are_kept(tiny_encoder: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    options = quick(tiny_encoder, epochs=8.0, learning_rate=0.01, head_learning_rate=0.01)
    run = train_run(
        easy_traces(200),
        tmp_path / "run",
        options,
        on_metric=lambda name, value, _: seen.append(value) if name == "validation_loss" else None,
    )
    training = json.loads((run.checkpoint / "rl_agent_config.json").read_text())["training"]
    assert training["validation_loss"] == min(seen)


def test_divergence_is_named_and_nothing_is_left(tiny_encoder: Path, tmp_path: Path) -> None:
    options = quick(tiny_encoder, learning_rate=1e30, head_learning_rate=1e30)
    with pytest.raises(ObserverError, match=r"diverged at step \d+ .*--head-lr"):
        train_run(easy_traces(200), tmp_path / "run", options)
    assert list(tmp_path.iterdir()) == []


def test_unusable_sets_are_named(tmp_path: Path) -> None:
    options = TrainOptions(family="baseline")
    one_class = [dataclasses.replace(trace, label="wrong") for trace in easy_traces(200)]
    unlabeled = [dataclasses.replace(trace, label=None) for trace in easy_traces(5)]
    for traces, says in (
        ([], "none of the 0 traces has a label"),
        (unlabeled, "none of the 5 traces has a label"),
        (one_class, r"split 'train' has \d+ wrong and 0 correct"),
        (easy_traces(30), "split '"),
    ):
        with pytest.raises(InputError, match=says):
            train_run(traces, tmp_path / "run", options)
    assert not (tmp_path / "run").exists()


def test_weights_follow_the_selection_probabilities() -> None:
    traces = [dataclasses.replace(t, keep_probability=0.01 if i == 0 else 1.0) for i, t in enumerate(easy_traces(240))]
    split = split_of(traces[0])
    weighted = split_traces(traces, weights=True)[split].weight
    assert weighted[0] == MAX_WEIGHT
    assert len(set(split_traces(traces, weights=False)[split].weight)) == 1


def test_every_row_is_in_one_batch_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(5, 300, 500).tolist(), 5000]
    first, second = (plan_batches(lengths, 1024, rng) for _ in range(2))
    for plan in (first, second):
        assert sorted(row for batch in plan for row in batch) == list(range(501))
        assert all(len(b) * max(lengths[row] for row in b) <= 1024 for b in plan if 500 not in b)
        assert [500] in plan
    padded = sum(len(b) * max(lengths[row] for row in b) for b in first)
    assert padded < 1.15 * sum(lengths)
    assert first != second


def test_the_callers_random_numbers_are_left_alone(tiny_encoder: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_run(easy_traces(200), tmp_path / "run", quick(tiny_encoder, epochs=0.2))
    assert torch.equal(torch.rand(3), expected)
