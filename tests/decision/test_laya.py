"""The Laya network: checkpoints, LoRA, answers that depend on nothing but their own row, parity of all back ends."""

from pathlib import Path

import numpy as np
import pytest
import torch
from asking import answers

from observer_core.decision.laya.checkpoint import copy_tokenizer, load_checkpoint, round_to_half, save_checkpoint
from observer_core.decision.laya.config import LayaConfig
from observer_core.decision.laya.layout import Layout, collate
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.packed import PackedBertLayer, PackedLinear
from observer_core.decision.laya.presets import find_preset
from observer_core.decision.laya.runtime import LayaModel
from observer_core.decision.laya.torch_backend import TorchBackend
from observer_core.decision.laya.trainer import fresh_model
from observer_core.decision.training.lora import LoraOptions, add_lora, merge_lora
from observer_core.errors import ObserverError
from observer_core.questions import Question, default_questions
from observer_core.rundir import RunDirectory

QUESTIONS = default_questions() | {
    "failure": Question(
        type="choice", instructions="why", criteria={"none": None, "tool": "red", "other": "blue green"}
    )
}
STATES = ["red", "blue green " * 20, "user question red", "tool " * 60, "x"]


def model_of(encoder: Path, seed: int = 1) -> tuple[DecisionModel, LayaConfig]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, config = fresh_model(find_preset(str(encoder)), max_len=256)
    return model.eval(), config


def layout_of(encoder: Path) -> Layout:
    return Layout(encoder, max_len=256, head_max_len=192)


def numbers(answers: list) -> np.ndarray:
    return np.array([p for of_state in answers for a in of_state.values() for p in a.probabilities.values()])


@pytest.fixture
def checkpoint(tiny_encoder: Path, tmp_path: Path) -> Path:
    model, config = model_of(tiny_encoder)
    round_to_half(model)
    copy_tokenizer(tiny_encoder, tmp_path / "checkpoint" / "tokenizer")
    save_checkpoint(model, config, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_checkpoint_comes_back_bit_for_bit(tiny_encoder: Path, checkpoint: Path) -> None:
    model, config = model_of(tiny_encoder)
    round_to_half(model)
    loaded, loaded_config = load_checkpoint(checkpoint)
    assert loaded_config == config
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    before = answers(LayaModel(layout_of(tiny_encoder), TorchBackend(model), config), STATES, QUESTIONS)
    assert answers(LayaModel.open(checkpoint, max_tokens=256), STATES, QUESTIONS) == before


def test_parameter_names_are_the_released_ones(tiny_encoder: Path) -> None:
    names = set(model_of(tiny_encoder)[0].state_dict())
    rest = {name for name in names if not name.startswith(("encoder.", "head.layers."))}
    assert rest == {
        "type_emb.weight", "temperature", "scorer.0.weight", "scorer.0.bias", "scorer.1.weight", "scorer.1.bias",
        "scorer.3.weight", "scorer.3.bias", "act_head.0.weight", "act_head.0.bias", "act_head.2.weight", "act_head.2.bias",
    }  # fmt: skip
    assert "head.layers.0.self_attn.in_proj_weight" in names


def test_lora_merged_is_lora_unmerged(tiny_encoder: Path) -> None:
    model, config = model_of(tiny_encoder)
    plain = numbers(answers(LayaModel(layout_of(tiny_encoder), TorchBackend(model), config), STATES, QUESTIONS))
    model.encoder = add_lora(model.encoder, LoraOptions(rank=4))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(3)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    ours = LayaModel(layout_of(tiny_encoder), TorchBackend(model), config)
    unmerged = numbers(answers(ours, STATES, QUESTIONS))
    model.encoder = merge_lora(model.encoder)
    merged = numbers(answers(LayaModel(layout_of(tiny_encoder), TorchBackend(model), config), STATES, QUESTIONS))
    assert np.abs(unmerged - plain).max() > 1e-3  # LoRA did something
    assert np.abs(unmerged - merged).max() < 1e-5
    assert not any("lora" in name for name in model.state_dict())


def test_an_answer_depends_on_its_own_row_only(tiny_encoder: Path) -> None:
    model, config = model_of(tiny_encoder)
    ours = LayaModel(layout_of(tiny_encoder), TorchBackend(model), config)
    together = answers(ours, STATES, QUESTIONS)
    turned = answers(ours, STATES[::-1], dict(reversed(QUESTIONS.items())))[::-1]
    for state, both, other in zip(STATES, together, turned, strict=True):
        for name, question in QUESTIONS.items():
            (alone,) = answers(ours, [state], {"renamed": question})
            assert both[name] == other[name] == alone["renamed"]


def test_padding_changes_nothing(tiny_encoder: Path) -> None:
    model, _ = model_of(tiny_encoder)
    layout = layout_of(tiny_encoder)
    rows = [row for state in STATES for row in layout.rows(state, QUESTIONS)]
    backend = TorchBackend(model)
    (padded,) = backend.logits([collate(rows, layout.pad_id)])
    for row, logits in zip(rows, padded, strict=True):
        alone = backend.logits([collate([row], layout.pad_id)])[0][0]
        assert np.abs(alone - logits[: len(alone)]).max() < 1e-5


def test_onnx_answers_as_torch_at_every_shape(laya_run: RunDirectory) -> None:
    graph = laya_run.onnx / laya_run.manifest.onnx["served"]
    torch_model = LayaModel.open(laya_run.checkpoint)
    onnx_model = LayaModel.open(laya_run.checkpoint, onnx=graph)
    difference = np.abs(
        numbers(answers(torch_model, STATES, QUESTIONS)) - numbers(answers(onnx_model, STATES, QUESTIONS))
    )
    assert difference.max() < 1e-5
    assert laya_run.manifest.onnx["max_difference"] < 1e-5


def test_temperature_divides_the_logits(checkpoint: Path) -> None:
    (cold,) = answers(LayaModel.open(checkpoint), ["red"], QUESTIONS)
    config = LayaConfig.load(checkpoint)
    config.model_copy(update={"temperature": (1.0, 1.0, 2.0)}).save(checkpoint)
    (warm,) = answers(LayaModel.open(checkpoint), ["red"], QUESTIONS)

    def logit(p: float) -> float:
        return float(np.log(p / (1 - p)))

    assert logit(warm["answer_wrong"].noul) == pytest.approx(logit(cold["answer_wrong"].noul) / 2, abs=1e-6)
    assert warm["failure"] == cold["failure"]


def test_weights_too_large_for_the_file_are_refused(tiny_encoder: Path) -> None:
    model, _ = model_of(tiny_encoder)
    with torch.no_grad():
        model.scorer[3].bias.fill_(1e6)
    with pytest.raises(ObserverError, match=r"scorer\.3\.bias is not finite"):
        round_to_half(model)


def test_layers_made_over_for_reading_give_the_same_logits(tiny_encoder: Path) -> None:
    model, _ = model_of(tiny_encoder)
    layout = layout_of(tiny_encoder)
    rows = [row for state in STATES for row in layout.rows(state, QUESTIONS)]
    batches = [*(collate([row], layout.pad_id) for row in rows), collate(rows, layout.pad_id)]
    before = TorchBackend(model).logits(batches)
    served = TorchBackend.serving(model).logits(batches)
    assert max(np.abs(a - b).max() for a, b in zip(before, served, strict=True)) < 1e-5
    assert any(isinstance(module, PackedLinear) for module in model.modules())
    assert any(isinstance(module, PackedBertLayer) for module in model.modules())


def test_a_layer_with_another_activation_is_not_taken_for_the_usual_one(tiny_encoder: Path) -> None:
    model, _ = model_of(tiny_encoder)
    for layer in model.encoder.encoder.layer:  # pyright: ignore[reportAttributeAccessIssue, reportGeneralTypeIssues]
        layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
    layout = layout_of(tiny_encoder)
    batches = [collate([row], layout.pad_id) for row in layout.rows(STATES[1], QUESTIONS)]
    before = TorchBackend(model).logits(batches)
    served = TorchBackend.serving(model).logits(batches)
    assert max(np.abs(a - b).max() for a, b in zip(before, served, strict=True)) < 1e-5
