"""Where and how precisely training computes."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from observer_core.decision.training.options import Precision
from observer_core.errors import InputError

BF16_MACOS = (14, 0)
"""The first macOS whose Metal computes in bfloat16."""


def choose_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether to compute under bfloat16 autocast; weights, gradients and optimiser stay float32.

    `auto` takes it on a GPU that has it in hardware. On a CPU it has to be asked for: without AMX it is slower there,
    and a seed would no longer give the same weights on another machine.

    Raises:
        InputError: bf16 was asked for and the device has none.
    """
    if device.type == "cuda":
        has_it = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "mps":
        has_it = torch.backends.mps.is_macos_or_newer(*BF16_MACOS)
    else:
        has_it = device.type == "cpu" and precision == "bf16"
    if precision == "bf16" and not has_it:
        raise InputError(f"this {device.type} device has no bf16; train with --precision fp32 or auto")
    return has_it and precision != "fp32"


def autocast(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager[object]:
    """bfloat16 where it is safe, or nothing at all."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()


@contextlib.contextmanager
def checkpoint_layers(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Within the block every transformers model inside `model` keeps only its layers' inputs while it trains.

    Raises:
        InputError: there is none that can.
    """
    if not wanted:
        yield
        return
    from transformers import PreTrainedModel

    inside = [m for m in model.modules() if isinstance(m, PreTrainedModel) and m.supports_gradient_checkpointing]
    if not inside:
        raise InputError("this model has no layers that can be checkpointed; train without --gradient-checkpointing")
    # transformers 5.23 has a new name for it and warns of the old one, which 5.17 has alone.
    kind = "activation" if hasattr(inside[0], "activation_checkpointing_enable") else "gradient"
    for module in inside:
        getattr(module, f"{kind}_checkpointing_enable")(**{f"{kind}_checkpointing_kwargs": {"use_reentrant": False}})
    try:
        yield
    finally:
        for module in inside:
            getattr(module, f"{kind}_checkpointing_disable")()
