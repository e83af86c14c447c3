"""Laya checkpoints on disk: `rl_agent_config.json`, `model.safetensors`, `encoder/config.json`, `tokenizer/`.

The weights file is half precision, as the released ones are. `round_to_half` rounds a model in memory to what the file
can hold; done before calibration, golden scores and the ONNX export, everything agrees exactly. Arithmetic is always
float32.
"""

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from observer_core.decision.laya.config import CONFIG_FILE, ENCODER_DIR, WEIGHTS_FILE, LayaConfig
from observer_core.decision.laya.model import DecisionModel
from observer_core.errors import InputError, ObserverError
from observer_core.tokenizer import load_tokenizer

TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def round_to_half(model: torch.nn.Module) -> None:
    """Round every weight to the nearest half-precision number, in place.

    Raises:
        ObserverError: a weight is not finite, or too large for half precision.
    """
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(tensor.half().float())
                if not bool(torch.isfinite(tensor).all()):
                    raise ObserverError(f"weight {name} is not finite in half precision; train with a lower --lr")


def save_checkpoint(model: DecisionModel, config: LayaConfig, checkpoint: Path) -> None:
    """Fill a checkpoint folder, which has its tokenizer already (`copy_tokenizer`); the `laya` package loads it too.

    Args:
        model: with LoRA merged and rounded by `round_to_half`.
        checkpoint: the folder to fill.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().cpu().half().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, checkpoint / WEIGHTS_FILE)
    model.encoder.config.save_pretrained(checkpoint / ENCODER_DIR)  # pyright: ignore
    config.save(checkpoint)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy a tokenizer folder, leaving out the padding and truncation its makers set (`load_tokenizer`)."""
    target.mkdir(parents=True, exist_ok=True)
    load_tokenizer(source).save(str(target / "tokenizer.json"))
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def build_model(config: LayaConfig, encoder_dir: Path) -> DecisionModel:
    """A model with random weights in the shape a checkpoint's configuration describes.

    Raises:
        InputError: `encoder_dir/config.json` is missing or broken.
    """
    from transformers import AutoConfig, AutoModel

    file = encoder_dir / "config.json"
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the run again or train anew")
    # The random weights are about to be overwritten: loading must not use up the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        try:
            encoder = AutoModel.from_config(AutoConfig.from_pretrained(encoder_dir), attn_implementation="sdpa")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise InputError(f"{file} does not describe an encoder ({_line(error)}); copy the run again") from error
        return DecisionModel(encoder, head_layers=config.head_layers, actions=config.actions)


def load_checkpoint(checkpoint: Path) -> tuple[DecisionModel, LayaConfig]:
    """Read a checkpoint folder: float32 weights, evaluation mode. The names must match exactly.

    Raises:
        InputError: a file is missing or broken, a tensor is missing, renamed, of another shape or not finite; names it.
    """
    config = LayaConfig.load(checkpoint)
    model = build_model(config, checkpoint / ENCODER_DIR)
    file = checkpoint / WEIGHTS_FILE
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the run again or train anew")
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise InputError(f"{file} is broken ({_line(error)}); copy the run again or train anew") from error
    _check_names(file, model, weights)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{file}: tensor {name} holds a number that is not finite; train anew")
    model.load_state_dict({name: t.float() if t.is_floating_point() else t for name, t in weights.items()})
    return model.eval(), config


def _check_names(file: Path, model: DecisionModel, weights: dict[str, torch.Tensor]) -> None:
    expected = model.state_dict()
    missing, unknown = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    for problem, names in (("lacks", missing), ("has an unknown", unknown)):
        if names:
            raise InputError(
                f"{file} {problem} tensor {min(names)} ({len(names)} such); it does not belong to {CONFIG_FILE} beside "
                "it, copy the run again"
            )
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
            raise InputError(f"{file}: tensor {name} has shape {shapes}; copy the run again")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
