"""The Kev network in torch: a causal decoder without vocabulary head, and a pointer from `<decide>` to the options."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from observer_core.errors import InputError

MASKED = -1e4
"""Logit of a padding option."""

LAYER_TYPES = {"full_attention", "linear_attention"}
"""What a backbone may consist of: attention to everything before, or Gated DeltaNet."""


class PointerHead(nn.Module):
    """logit_j = k(h at option j) · q(h at decide) / √dim; parameters `q.*` and `k.*` as in released checkpoints."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, dim), nn.Linear(width, dim)

    def forward(self, decide: Tensor, options: Tensor) -> Tensor:
        """Logits (…, options) for `decide` (…, width) and `options` (…, options, width)."""
        return (self.k(options) @ self.q(decide).unsqueeze(-1)).squeeze(-1) / math.sqrt(self.q.out_features)


def is_hybrid(config: Any) -> bool:
    """Whether a backbone has layers whose state is a recurrence, which no attention mask can divide into branches."""
    return "linear_attention" in layer_types(config)


def layer_types(config: Any) -> Sequence[str]:
    """The type of each layer; when the configuration does not tell, all attention, sliding if it has a window."""
    window = getattr(config, "sliding_window", None)
    usual = "full_attention" if window is None else "sliding_attention"
    return getattr(config, "layer_types", None) or [usual] * config.num_hidden_layers


class KevNetwork(nn.Module):
    """Backbone and pointer head.

    Args:
        backbone: a Hugging Face decoder without vocabulary head (Qwen3.5, Qwen3, Llama), perhaps wrapped by peft.
        head_dim: width of the pointer head.

    Raises:
        InputError: the backbone has layers of a kind that cannot be continued exactly from a kept state.
    """

    def __init__(self, backbone: nn.Module, *, head_dim: int) -> None:
        super().__init__()
        self.config: Any = backbone.config
        unknown = set(layer_types(self.config)) - LAYER_TYPES
        if unknown:
            raise InputError(f"a Kev backbone cannot have layers of type {min(unknown)}; choose another base")
        self.backbone = backbone
        self.head = PointerHead(int(self.config.hidden_size), head_dim)

    @property
    def hybrid(self) -> bool:
        return is_hybrid(self.config)

    def forward(
        self,
        input_ids: Tensor,
        option_pos: Tensor,
        option_mask: Tensor,
        decide_pos: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits of the options, float32 (rows, questions, options), before the temperature; padding gets −1e4.

        Args:
            input_ids: int64 (rows, tokens), padded on the right.
            option_pos: int64 (rows, questions, options), positions of the `</opt>`s.
            option_mask: bool (rows, questions, options), false for padding.
            decide_pos: int64 (rows, questions), positions of the `<decide>`s.
            position_ids: int64 (rows, tokens), when a row holds several branches.
            attention_mask: bool (rows, 1, tokens, tokens), what each token sees, when a row holds several branches.
        """
        at_decide, at_options = self.read(
            input_ids, option_pos, decide_pos, position_ids=position_ids, attention_mask=attention_mask
        )
        return self.point(at_decide, at_options, option_mask)

    def read(
        self,
        input_ids: Tensor,
        option_pos: Tensor,
        decide_pos: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The backbone's outputs (rows, questions, width) at the `<decide>`s and (rows, questions, options, width) at
        the `</opt>`s; arguments as of `forward`."""
        hidden = self.backbone(
            input_ids=input_ids, position_ids=position_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state.float()
        return gather(hidden, decide_pos), gather(hidden, option_pos)

    def point(self, at_decide: Tensor, at_options: Tensor, option_mask: Tensor) -> Tensor:
        """What `forward` does after the backbone."""
        return self.head(at_decide, at_options).float().masked_fill(~option_mask, MASKED)


def gather(hidden: Tensor, positions: Tensor) -> Tensor:
    """The vectors (rows, …, width) of `hidden` (rows, tokens, width) at `positions` (rows, …)."""
    flat = positions.flatten(1)
    found = torch.gather(hidden, 1, flat[:, :, None].expand(-1, -1, hidden.size(-1)))
    return found.unflatten(1, positions.shape[1:])
