"""The LoRA of a Kev checkpoint in peft's files, read without handing peft anything from them but names and numbers.

`adapter_config.json` can name modules to import and methods to run; here a configuration is made anew from its rank,
alpha, dropout and targets, and a file that asks for more is refused.
"""

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from observer_core.decision.kev.config import ADAPTER_CONFIG, ADAPTER_FILE, KevConfig
from observer_core.decision.weights import WEIGHT_DTYPES
from observer_core.errors import InputError, one_line

TARGETS = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
}
"""The linear layers LoRA is put on where a backbone has them: attention, feed-forward, Gated DeltaNet."""


READ_FIELDS = {"r", "lora_alpha", "lora_dropout", "target_modules"}
IGNORED_FIELDS = {
    *("peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping"),
    *("init_lora_weights", "runtime_config", "peft_version"),
}
"""What peft writes and a trained adapter does not depend on."""


def fresh_adapter(backbone: nn.Module, *, rank: int) -> nn.Module:
    """The backbone, frozen, with new LoRA of that rank on all linear layers (peft's wrapper); alpha is twice the rank.

    Raises:
        InputError: it has no layer that LoRA could be put on.
    """
    found = {name.rsplit(".", 1)[-1] for name, module in backbone.named_modules() if isinstance(module, nn.Linear)}
    if not found & TARGETS:
        raise InputError(f"the base has none of the layers LoRA goes on ({', '.join(sorted(TARGETS))}); choose another")
    return _wrap(backbone, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=sorted(found & TARGETS)))


def save_adapter(backbone: nn.Module, config: KevConfig, checkpoint: Path) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` of a backbone wrapped by peft."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(backbone).items()}
    save_file(tensors, checkpoint / ADAPTER_FILE, metadata={"format": "pt"})
    body = backbone.peft_config["default"].to_dict()  # pyright: ignore
    body |= {"inference_mode": True, "base_model_name_or_path": config.base, "revision": config.base_revision}
    body["target_modules"] = sorted(body["target_modules"])
    (checkpoint / ADAPTER_CONFIG).write_text(json.dumps(body, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_adapter(backbone: nn.Module, config: KevConfig, checkpoint: Path) -> nn.Module:
    """The backbone with a checkpoint's LoRA on it, not merged (peft's wrapper).

    Raises:
        InputError: a file is missing, broken or asks for something this version does not do; its rank is not the
            checkpoint's; or a tensor is missing, unknown, of another shape or not finite. Names file and tensor.
    """
    lora = _read_config(checkpoint / ADAPTER_CONFIG, config)
    try:
        wrapped = _wrap(backbone, lora)
    except (ValueError, TypeError, RuntimeError) as error:  # targets that the base lacks, a rank beyond all memory
        raise InputError(
            f"{checkpoint / ADAPTER_CONFIG} does not fit the base ({one_line(error)}); copy the run again"
        ) from error
    file = checkpoint / ADAPTER_FILE
    tensors = read_tensors(file)
    check_tensors(file, tensors, _tensors(wrapped))
    set_peft_model_state_dict(wrapped, {name: tensor.float() for name, tensor in tensors.items()})
    return wrapped


def merged(backbone: nn.Module) -> nn.Module:
    """The plain backbone with LoRA added into its float32 weights."""
    return backbone.merge_and_unload()  # pyright: ignore


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        InputError: it is missing or broken.
    """
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the run again or train anew")
    try:
        return load_file(file)
    except SafetensorError as error:
        raise InputError(f"{file} is broken ({one_line(error)}); copy the run again or train anew") from error


def check_tensors(file: Path, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Refuse tensors that are not exactly those expected: floats, names in both directions, shapes, finite numbers.

    Raises:
        InputError: names file and tensor.
    """
    for name, tensor in found.items():
        if tensor.dtype not in WEIGHT_DTYPES or tensor.layout != torch.strided:
            kind = tensor.dtype if tensor.layout == torch.strided else tensor.layout
            raise InputError(f"{file}: tensor {name} holds {kind}, which are no weights; copy the run again")
    missing, unknown = expected.keys() - found.keys(), found.keys() - expected.keys()
    for problem, names in (("lacks", missing), ("has an unknown", unknown)):
        if names:
            raise InputError(
                f"{file} {problem} tensor {min(names)} ({len(names)} such); it does not belong to this base and "
                "configuration, copy the run again"
            )
    for name, tensor in found.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
            raise InputError(f"{file}: tensor {name} has shape {shapes}; copy the run again")
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{file}: tensor {name} holds a number that is not finite; copy the run again")


def _wrap(backbone: nn.Module, lora: LoraConfig) -> nn.Module:
    lora.task_type = "FEATURE_EXTRACTION"
    return get_peft_model(backbone, lora)  # pyright: ignore


def _tensors(wrapped: nn.Module) -> dict[str, Tensor]:
    return get_peft_model_state_dict(wrapped)


def _read_config(file: Path, config: KevConfig) -> LoraConfig:
    try:
        body: Any = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{file} is missing; copy the run again or train anew") from None
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({one_line(error)}); copy the run again or train anew") from error
    if not isinstance(body, dict):
        raise InputError(f"{file} is not a JSON object; copy the run again or train anew")
    if str(body.get("peft_type")).upper() != "LORA":
        raise InputError(f"{file}: field 'peft_type' is {body.get('peft_type')}; only LORA can be loaded")
    usual = LoraConfig().to_dict()
    for field, value in body.items():
        if (
            field not in READ_FIELDS | IGNORED_FIELDS
            and value != usual.get(field)
            and value not in (None, False, {}, [])
        ):
            raise InputError(
                f"{file}: field '{field}' is {value}, which this version does not load; use another adapter"
            )
    rank, alpha, dropout = (body.get(name, usual[name]) for name in ("r", "lora_alpha", "lora_dropout"))
    for name, value, usable in (
        ("r", rank, type(rank) is int and rank > 0),
        ("lora_alpha", alpha, type(alpha) in (int, float) and 0 <= alpha < 1e6),
        ("lora_dropout", dropout, type(dropout) in (int, float) and 0 <= dropout <= 1),
    ):
        if not usable:
            raise InputError(f"{file}: field '{name}' is {value}, no usable number; copy the run again")
    targets = body.get("target_modules")
    if not isinstance(targets, list) or not targets or not all(isinstance(name, str) for name in targets):
        raise InputError(f"{file}: field 'target_modules' is no list of names; copy the run again")
    if rank != config.lora:
        raise InputError(f"{file} says r {rank}, head.pt says lora {config.lora}; these do not belong together")
    return LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets)
