"""Kev checkpoints on disk, in the released layout: LoRA in peft's files, `head.pt`, a copy of the tokenizer.

Ours add `kev.json` (the fields of `head.pt` again, readable without torch) and, when it is small, `base/`. Nothing is
executed that comes from a checkpoint or a base: `head.pt` is read as plain data, weights as safetensors, and no code in
a folder is trusted. Arithmetic is always float32.
"""

import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from observer_core.decision.checkpoint_files import refuse_unknown
from observer_core.decision.kev.adapter import check_tensors, load_adapter, merged, save_adapter
from observer_core.decision.kev.base import Base, carry_base, find_base
from observer_core.decision.kev.config import CONFIG_FILE, FILES, HEAD_FILE, KevConfig
from observer_core.decision.kev.model import KevNetwork
from observer_core.errors import InputError, ObserverError, one_line

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint in memory; `tokenizer` is the folder its tokenizer lies in."""

    network: KevNetwork
    config: KevConfig
    base: Base
    tokenizer: Path


def load_checkpoint(checkpoint: Path, *, base: Path | None = None, merge: bool = True) -> Loaded:
    """Read a checkpoint folder: float32 weights, evaluation mode.

    Args:
        base: the backbone's folder; without it the one the checkpoint names is looked for (`base.find_base`).
        merge: add LoRA into the weights, to serve; otherwise it stays apart (peft's wrapper), to train on.

    Raises:
        InputError: a file is missing, broken or unknown, two files contradict each other, the base is not there or not
            the one, or a tensor is missing, unknown, of another shape or not finite; names file and tensor.
    """
    refuse_unknown(checkpoint, FILES)
    config, head = read_head(checkpoint)
    recorded = KevConfig.load(checkpoint)
    if recorded is not None:
        config.require_equal(recorded, str(checkpoint / HEAD_FILE), CONFIG_FILE)
    found = find_base(config, checkpoint, base)
    backbone = load_adapter(load_backbone(found.folder), config, checkpoint)
    network = KevNetwork(merged(backbone) if merge else backbone, head_dim=config.head_dim)
    check_tensors(checkpoint / HEAD_FILE, head, network.head.state_dict())
    network.head.load_state_dict({name: tensor.float() for name, tensor in head.items()})
    own = (checkpoint / "tokenizer.json").is_file()
    return Loaded(network.eval(), config, found, checkpoint if own else found.folder)


def save_checkpoint(network: KevNetwork, config: KevConfig, base: Base, checkpoint: Path) -> None:
    """Write a checkpoint that this project loads, with the files of a released one, but for the tokenizer.

    Args:
        network: its backbone wrapped by peft, LoRA not merged.
        checkpoint: the folder to fill, where `copy_tokenizer` has put the tokenizer.

    Raises:
        ObserverError: a trained weight is not finite.
    """
    for name, tensor in network.named_parameters():
        if tensor.requires_grad and not bool(torch.isfinite(tensor).all()):
            raise ObserverError(f"weight {name} is not finite; train with a lower --lr")
    checkpoint.mkdir(parents=True, exist_ok=True)
    save_adapter(network.backbone, config, checkpoint)
    head = {name: tensor.detach().cpu().clone() for name, tensor in network.head.state_dict().items()}
    torch.save(config.model_dump(mode="json") | {"holdout": [], "head": head}, checkpoint / HEAD_FILE)
    config.save(checkpoint)
    carry_base(base, checkpoint)


def copy_tokenizer(source: Path, checkpoint: Path) -> None:
    """Copy the files of a tokenizer into a checkpoint's folder, which is made if it is not there."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, checkpoint / name)


def read_head(checkpoint: Path) -> tuple[KevConfig, dict[str, Tensor]]:
    """`head.pt`: what the checkpoint says of itself, and the pointer head's weights.

    Raises:
        InputError: it is missing or broken, holds anything but plain data, or a field is unusable.
    """
    file = checkpoint / HEAD_FILE
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the run again or train anew")
    try:
        body: Any = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file} is broken or holds code, which is not run ({one_line(error)[:80]}); get it anew"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{file} is broken ({one_line(error)}); copy the run again or train anew") from error
    head = body.pop("head", None) if isinstance(body, dict) else None
    if not isinstance(head, dict) or not all(isinstance(tensor, Tensor) for tensor in head.values()):
        raise InputError(f"{file} lacks the weights of the pointer head (field 'head'); copy the run again")
    return KevConfig.parse(body, file), head


def load_backbone(folder: Path) -> nn.Module:
    """The decoder in a base's folder without its vocabulary head: float32 weights.

    Raises:
        InputError: a file is missing or broken, needs code of its own, or a tensor is missing, of another shape or not
            finite; names it.
    """
    from transformers import AutoModelForCausalLM

    try:
        # Weights that are missing are made up and discarded: that must not use up the caller's random numbers.
        with torch.random.fork_rng(devices=[]):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # transformers, safetensors and configuration classes raise many kinds
        raise InputError(f"cannot load the base in {folder}: {one_line(error)}; give another folder") from error
    model, info = loaded
    missing = sorted(name for name in info["missing_keys"] if not name.startswith("lm_head"))
    if missing:
        raise InputError(f"the base in {folder} lacks tensor {missing[0]} ({len(missing)} such); copy it again")
    if not hasattr(model, "model"):
        kind = model.config.model_type
        raise InputError(f"the base in {folder} is a {kind}, whose decoder is not read here; choose another base")
    for name, tensor in model.model.named_parameters():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"the base in {folder}: tensor {name} holds a number that is not finite; copy it again")
    return model.model
