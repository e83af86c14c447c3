"""Folders that cannot be what they claim, or that carry code, are refused with one line that names file and tensor."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decision.conftest import easy_traces, quick
from decision.tiny import edit_json, write_modernbert
from safetensors.torch import load_file, save_file

from observer_core.decision.laya.checkpoint import copy_tokenizer, load_checkpoint, save_checkpoint
from observer_core.decision.laya.config import LayaConfig
from observer_core.decision.laya.presets import RELEASED, find_preset
from observer_core.decision.laya.runtime import LayaModel
from observer_core.decision.laya.start import find_start
from observer_core.decision.laya.trainer import fresh_model
from observer_core.decision.train import train_run
from observer_core.errors import InputError
from observer_core.rundir import RunDirectory


@pytest.fixture
def checkpoint(tiny_encoder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, config = fresh_model(find_preset(str(tiny_encoder)), max_len=256)
    copy_tokenizer(tiny_encoder, folder / "tokenizer")
    save_checkpoint(model, config, folder)
    return folder


def refused(folder: Path, *says: str) -> None:
    with pytest.raises(InputError) as caught:
        LayaModel.open(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in says), message


def rename(weights: dict[str, torch.Tensor]) -> None:
    weights["scorer.2.weight"] = weights.pop("scorer.1.weight")


def lose(weights: dict[str, torch.Tensor]) -> None:
    del weights["type_emb.weight"]


def add(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.layer.99.weight"] = torch.zeros(2)


def spoil(weights: dict[str, torch.Tensor]) -> None:
    weights["scorer.3.bias"] = torch.full_like(weights["scorer.3.bias"], float("nan"))


def reshape(weights: dict[str, torch.Tensor]) -> None:
    weights["type_emb.weight"] = weights["type_emb.weight"][:2].clone()


def count(weights: dict[str, torch.Tensor]) -> None:
    weights["scorer.3.bias"] = torch.zeros(1, dtype=torch.int64)


def narrow(weights: dict[str, torch.Tensor]) -> None:
    weights["scorer.3.bias"] = weights["scorer.3.bias"].to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (rename, "lacks tensor scorer.1.weight"),
        (lose, "lacks tensor type_emb.weight"),
        (add, "has an unknown tensor encoder.layer.99.weight"),
        (spoil, "tensor scorer.3.bias holds a number that is not finite"),
        (reshape, "tensor type_emb.weight has shape (2, 32), not (3, 32)"),
        (count, "tensor scorer.3.bias holds torch.int64"),
        (narrow, "tensor scorer.3.bias holds torch.float8_e4m3fn"),
    ],
)
def test_wrong_weights_are_refused(
    checkpoint: Path, change: Callable[[dict[str, torch.Tensor]], None], says: str
) -> None:
    file = checkpoint / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)
    refused(checkpoint, str(file), says)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "rl_agent_config.json", "encoder/config.json", "tokenizer/tokenizer.json"]
)
@pytest.mark.parametrize("how", ["missing", "cut", "not an object"])
def test_broken_checkpoint_files_are_named(checkpoint: Path, name: str, how: str) -> None:
    file = checkpoint / name
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-20] if how == "cut" else b"[]")
    refused(checkpoint, Path(name).name)


@pytest.mark.parametrize(
    ("file", "changes", "says"),
    [
        ("rl_agent_config.json", {"option_layout": "parallel"}, "option_layout 'parallel' is not read"),
        ("rl_agent_config.json", {"temperature": [1.0, 0.0, 1.0]}, "field 'temperature.1'"),
        ("rl_agent_config.json", {"temperature": [1.0, 1.0]}, "field 'temperature"),
        ("rl_agent_config.json", {"temperature_by_options": {"noul:2": True}}, "field 'temperature_by_options.noul:2'"),
        ("rl_agent_config.json", {"max_len": 513}, "says max_len 513"),
        ("encoder/config.json", {"vocab_size": 20}, "20; copy it again"),
        ("encoder/config.json", {"vocab_size": "160"}, "config.json"),
        ("tokenizer/tokenizer_config.json", {"mask_token": "[SEP]"}, "names [SEP] as mask and as another token"),
        ("rl_agent_config.json", {"head_layers": 2}, "lacks tensor head.layers.1"),
        ("encoder/config.json", {"model_type": "gpt2"}, "model_type 'gpt2' is no encoder"),
        ("encoder/config.json", {"num_hidden_layers": 3}, "lacks tensor encoder.encoder.layer.2"),
        ("encoder/config.json", {"num_attention_heads": 5}, "does not describe an encoder"),
        ("tokenizer/tokenizer_config.json", {"mask_token": "<nothing>"}, "has no token <nothing>"),
        ("tokenizer/tokenizer_config.json", {"mask_token": 4}, "field 'mask_token' is no token"),
    ],
)
def test_configurations_that_do_not_belong_to_the_weights(
    checkpoint: Path, file: str, changes: dict[str, Any], says: str
) -> None:
    edit_json(checkpoint / file, **changes)
    refused(checkpoint, says)


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "encoder/model.safetensors", "tokenizer/notes.txt", "x/y.json"]
)
def test_files_the_layout_does_not_know_are_refused(checkpoint: Path, name: str) -> None:
    cached = ".cache/huggingface/download/model.safetensors.metadata"
    for beside in ("README.md", "LICENSE", ".gitattributes", cached, "questions.json", "train_report.json"):
        (checkpoint / beside).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / beside).write_text("read by nobody")
    LayaModel.open(checkpoint)
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text("{}")
    refused(checkpoint, str(checkpoint / name), "is no file of this kind of checkpoint")


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.target, "the code ran"))


CODE = "from pathlib import Path\nPath({!r}).write_text('the code ran')\nclass Net: ...\n"


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize("where", ["encoder", "tokenizer"])
def test_no_code_of_a_checkpoint_runs(laya_run: RunDirectory, tmp_path: Path, where: str, backend: str) -> None:
    """Pickled weights, modelling code and `auto_map` are planted one by one; each is refused and none of it runs."""
    folder, ran = tmp_path / "checkpoint", tmp_path / "ran"
    graph = None if backend == "torch" else laya_run.onnx / laya_run.manifest.onnx["served"]
    for name in ("pytorch_model.bin", "head.pt", "net.py", "auto_map"):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(laya_run.checkpoint, folder)
        planted = folder / where / name
        if name == "net.py":
            planted.write_text(CODE.format(str(ran)))
        elif name != "auto_map":
            planted.write_bytes(pickle.dumps(Payload(ran)))
        else:
            (folder / "net.txt").write_text(CODE.format(str(ran)))
            file = folder / where / ("config.json" if where == "encoder" else "tokenizer_config.json")
            edit_json(file, auto_map=dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "net.Net"))
        with pytest.raises(InputError, match=r"may hold code|asks for code") as caught:
            LayaModel.open(folder, onnx=graph)
        assert "\n" not in str(caught.value)
        assert not ran.exists()
    pickle.loads(pickle.dumps(Payload(ran)))  # the payload is live
    assert ran.exists()


def test_pickled_weights_in_place_of_safetensors_are_refused(
    checkpoint: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    for folder in (checkpoint, Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(ran)))
        with pytest.raises(
            InputError, match=r"pytorch_model\.bin|lacks model\.safetensors|model\.safetensors is missing"
        ):
            find_start(quick(folder))
    assert not ran.exists()


def test_encoder_folders(tiny_encoder: Path, tmp_path: Path) -> None:
    mini = find_preset("laya-mini")
    assert (mini.max_len, mini.revision[:8], mini.released) == (512, "53aa5117", False)
    with pytest.raises(InputError, match="no preset or folder 'nothing'; presets of family laya: laya-mini, laya, "):
        find_preset("nothing")
    with pytest.raises(InputError, match="at most 512 tokens"):
        fresh_model(find_preset(str(tiny_encoder)), max_len=600)
    for name, says in (
        ("model.safetensors", r"lacks model\.safetensors"),
        ("config.json", r"lacks config\.json"),
        ("tokenizer.json", r"lacks tokenizer\.json"),
    ):
        folder = Path(shutil.copytree(tiny_encoder, tmp_path / name))
        (folder / name).unlink()
        with pytest.raises(InputError, match=says):
            find_preset(str(folder))
    for number, (change, says) in enumerate(
        [
            (
                lambda w: w.pop("encoder.layer.1.output.dense.weight"),
                r"lacks tensor encoder\.layer\.1\.output\.dense\.weight",
            ),
            (
                lambda w: w["embeddings.LayerNorm.bias"].fill_(float("inf")),
                r"embeddings\.LayerNorm\.bias holds a number that is not",
            ),
        ]
    ):
        folder = Path(shutil.copytree(tiny_encoder, tmp_path / str(number)))
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(InputError, match=says):
            fresh_model(find_preset(str(folder)), max_len=256)


@pytest.mark.parametrize("name", [*RELEASED, "somebody/else@v1"])
def test_a_checkpoint_on_the_hub_is_one_line_when_offline(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"from the model hub .* or give a folder") as caught:
        find_preset(name)
    assert "\n" not in str(caught.value)
    assert RELEASED.get(name, name) in str(caught.value)
    with pytest.raises(InputError, match="needs its revision"):
        find_preset("somebody/else")


@pytest.mark.parametrize("by", ["preset", "init_from"])
def test_training_goes_on_from_a_released_checkpoint(laya_run: RunDirectory, tmp_path: Path, by: str) -> None:
    """A checkpoint folder without a manifest, as the makers release them: its head has learnt already."""
    released = Path(shutil.copytree(laya_run.checkpoint, tmp_path / "released"))
    edit_json(released / "rl_agent_config.json", max_len=128, temperature=[1.0, 1.0, 2.0])
    given = {"preset": str(released)} if by == "preset" else {"init_from": released}
    options = quick(released, epochs=0.5, learning_rate=1e-6, head_learning_rate=1e-6, **given)
    run = train_run(easy_traces(200, seed=2), tmp_path / "run", options)
    assert run.metrics()["all"]["auroc"]["value"] > 0.9  # a new head would have learnt nothing at this rate
    assert run.manifest.model == "released"
    assert run.manifest.init_from == f"released@{find_preset(str(released)).revision[:12]}"
    config = LayaConfig.load(run.checkpoint)
    assert (config.max_len, config.temperature) == (256, (1.0, 1.0, 2.0))
    with pytest.raises(InputError, match="reads at most 512 tokens, not 1000"):
        find_start(quick(released, max_tokens=1000, **given))


def test_a_modernbert_trains_and_its_checkpoint_comes_back(tmp_path: Path) -> None:
    encoder = write_modernbert(tmp_path / "encoder")
    run = train_run(easy_traces(200), tmp_path / "run", quick(encoder, epochs=0.3, max_tokens=600))
    model, config = load_checkpoint(run.checkpoint)
    assert config.max_len == 4096
    assert json.loads((run.checkpoint / "encoder" / "config.json").read_bytes())["model_type"] == "modernbert"
    assert run.manifest.slice_spec["budget"] > 400
    assert model.encoder.config.max_position_embeddings == 4096  # pyright: ignore
