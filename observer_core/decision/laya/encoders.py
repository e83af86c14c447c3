"""Builds encoders from `config.json` and nothing else of a folder: no code of a checkpoint ever runs.

Weights come from safetensors alone, and arithmetic is float32 whatever the configuration says.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from observer_core.decision.laya.config import ENCODER_CONFIG, WEIGHTS_FILE, read_config, refuse_code
from observer_core.decision.weights import WEIGHT_DTYPES
from observer_core.errors import InputError, one_line

ENCODERS = ("bert", "modernbert")


def build_encoder(folder: Path) -> nn.Module:
    """The encoder that a folder's `config.json` describes, float32, with random weights.

    Raises:
        InputError: the file is missing or broken, asks for code, or describes another kind of model.
    """
    from transformers import AutoConfig, AutoModel

    file = folder / ENCODER_CONFIG
    body = read_config(file)
    kind = body.pop("model_type", None)
    if kind not in ENCODERS:
        raise InputError(f"{file}: model_type {kind!r} is no encoder of this version; it reads {', '.join(ENCODERS)}")
    try:
        # Configurations of transformers 4 and 5 name the rotary bases differently; the library reads both.
        config = AutoConfig.for_model(kind, **body)
        return AutoModel.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    except Exception as error:  # configuration classes raise many kinds, some of no common base
        raise InputError(f"{file} does not describe an encoder ({one_line(error)}); copy the run again") from error


def load_encoder(folder: Path) -> nn.Module:
    """A pretrained encoder saved by transformers, float32.

    Raises:
        InputError: a file is missing or broken, could run code, or lacks a tensor; names it.
    """
    from transformers import AutoModel

    refuse_code(folder)
    config = build_encoder(folder).config
    file = folder / WEIGHTS_FILE
    try:
        encoder, found = AutoModel.from_pretrained(
            folder,
            config=config,
            attn_implementation="sdpa",
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (SafetensorError, ValueError, KeyError, RuntimeError, OSError) as error:
        raise InputError(f"cannot load the encoder in {folder}: {one_line(error)}") from error
    # A pooler is read by nothing here.
    missing = sorted(name for name in found["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise InputError(f"{file} lacks tensor {missing[0]} ({len(missing)} such); give another encoder folder")
    _check_finite(file, encoder.state_dict())
    return encoder


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file.

    Raises:
        InputError: missing, broken, or a tensor holds a number that is not finite; names the tensor.
    """
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the run again or train anew")
    try:
        weights = load_file(file)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{file} is broken ({one_line(error)}); copy the run again or train anew") from error
    for name, tensor in weights.items():
        if tensor.dtype not in WEIGHT_DTYPES:
            raise InputError(f"{file}: tensor {name} holds {tensor.dtype}, which are no weights; copy the run again")
    _check_finite(file, weights)
    return weights


def _check_finite(file: Path, weights: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"{file}: tensor {name} holds a number that is not finite; copy the run again or train anew"
            )


def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], file: Path, *, described_by: str) -> None:
    """Put tensors into a model whose names and shapes they must match exactly.

    Raises:
        InputError: a tensor is missing, unknown or of another shape; names file and tensor.
    """
    expected = model.state_dict()
    missing, unknown = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    for problem, names in (("lacks", missing), ("has an unknown", unknown)):
        if names:
            raise InputError(
                f"{file} {problem} tensor {min(names)} ({len(names)} such); it does not belong to {described_by} "
                "beside it, copy the run again"
            )
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
            raise InputError(f"{file}: tensor {name} has shape {shapes}; copy the run again")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
