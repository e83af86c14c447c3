"""Laya checkpoints on disk: `rl_agent_config.json`, `model.safetensors`, `encoder/config.json`, `tokenizer/`.

The weights file is half precision, as the released ones are. `round_to_half` rounds a model in memory to what the file
can hold; done before calibration, golden scores and the ONNX export, everything agrees exactly. Arithmetic is always
float32.
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from observer_core.decision.checkpoint_files import refuse_unknown
from observer_core.decision.laya.config import (
    CONFIG_FILE,
    ENCODER_CONFIG,
    ENCODER_DIR,
    FILES,
    WEIGHTS_FILE,
    LayaConfig,
    refuse_code,
)
from observer_core.decision.laya.encoders import build_encoder, load_weights, read_weights
from observer_core.decision.laya.model import DecisionModel
from observer_core.errors import ObserverError
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


def load_checkpoint(checkpoint: Path) -> tuple[DecisionModel, LayaConfig]:
    """Read a checkpoint folder: float32 weights and arithmetic, evaluation mode; names and shapes must match exactly.

    Raises:
        InputError: a file is missing, broken or unknown or could run code, or a tensor is missing, unknown, of another
            shape or not finite; names it.
    """
    refuse_code(checkpoint)
    refuse_unknown(checkpoint, FILES)
    config = LayaConfig.load(checkpoint)
    file = checkpoint / WEIGHTS_FILE
    weights = read_weights(file)
    # The random weights are about to be overwritten: loading must not use up the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        encoder = build_encoder(checkpoint / ENCODER_DIR)
        model = DecisionModel(encoder, head_layers=config.head_layers, actions=config.actions)
    load_weights(model, weights, file, described_by=f"{CONFIG_FILE} and {ENCODER_DIR}/{ENCODER_CONFIG}")
    return model.eval(), config
