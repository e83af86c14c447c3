"""LoRA on an encoder through peft: which layers, and folding it back in (E. Hu et al. 2021, arXiv 2106.09685)."""

from dataclasses import dataclass

from torch import nn

from observer_core.errors import InputError

TARGETS = {
    "bert": ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"],
    "modernbert": ["Wqkv", "Wo", "Wi"],
}
"""The linear layers LoRA is put on, by the encoder's `model_type`: attention and feed-forward."""


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """`alpha` is twice the rank, so that the step size does not change with the rank."""

    rank: int
    dropout: float = 0.0


def add_lora(encoder: nn.Module, options: LoraOptions) -> nn.Module:
    """The encoder with its weights frozen and trainable LoRA beside them (peft's wrapper).

    Raises:
        InputError: no targets are known for this kind of encoder.
    """
    from peft import LoraConfig, get_peft_model

    kind = str(encoder.config.model_type)  # pyright: ignore
    if kind not in TARGETS:
        raise InputError(f"LoRA has no targets for an encoder of type '{kind}'; known are {', '.join(TARGETS)}")
    config = LoraConfig(
        r=options.rank, lora_alpha=2 * options.rank, lora_dropout=options.dropout, target_modules=TARGETS[kind]
    )
    return get_peft_model(encoder, config)  # pyright: ignore


def merge_lora(encoder: nn.Module) -> nn.Module:
    """The plain encoder with LoRA added into its weights."""
    return encoder.merge_and_unload()  # pyright: ignore
