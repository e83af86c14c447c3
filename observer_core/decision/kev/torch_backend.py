"""Computes a Kev model with PyTorch: states once, branches on what was kept of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from observer_core.decision.kev.layout import Branch
from observer_core.decision.kev.model import KevNetwork, layer_types

CPU_TOKENS, GPU_TOKENS = 4096, 16_384
"""Padded tokens (state and branch) of one pass: what the memory for keys and values grows with."""


@dataclass(frozen=True, slots=True)
class TorchPrefix:
    """What the layers keep of a state: keys and values, or convolution window and recurrent state; one row each."""

    layers: list[tuple[Tensor, Tensor]]
    tokens: int

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for pair in self.layers for tensor in pair)


class TorchBackend:
    """PyTorch, on the device the network lies on, with LoRA merged.

    All branches of a state go together: each alone is too few tokens to be worth reading all weights for. On a CPU
    one state keeps the cores busy; elsewhere several go together, padded on the left, so that all branches continue at
    one place (a recurrence must not run over padding). Branches are padded on the right.

    Args:
        tokens_at_once: padded tokens of one pass (`CPU_TOKENS`, `GPU_TOKENS`); 0 takes one row at a time.
        states_together: whether one pass may hold several states.
    """

    def __init__(
        self, network: KevNetwork, *, tokens_at_once: int | None = None, states_together: bool | None = None
    ) -> None:
        self._network = network.eval()
        self._device = next(network.parameters()).device
        self._linear = [kind == "linear_attention" for kind in layer_types(network.config)]
        on_cpu = self._device.type == "cpu"
        fitting = CPU_TOKENS if on_cpu else GPU_TOKENS
        self.tokens_at_once = fitting if tokens_at_once is None else tokens_at_once
        self.states_together = not on_cpu if states_together is None else states_together

    @classmethod
    def on(cls, device: str | None, network: KevNetwork) -> "TorchBackend":
        """The network on a device; on a GPU of CUDA if there is one and none is named, else on the CPU."""
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return cls(network.to(chosen))

    def read(self, states: Sequence[Sequence[int]]) -> list[TorchPrefix]:
        """Read some states together; what is kept of each does not depend on the others."""
        lengths = [len(state) for state in states]
        longest = max(lengths)
        cache = DynamicCache(config=self._network.config)
        with torch.inference_mode():
            ids = torch.tensor([[0] * (longest - len(state)) + list(state) for state in states])
            padded = min(lengths) < longest
            mask = torch.tensor([[i >= longest - n for i in range(longest)] for n in lengths]) if padded else None
            self._pass(ids, cache, mask)
            return [self._row(cache, row, length) for row, length in enumerate(lengths)]

    def answer(self, prefixes: Sequence[TorchPrefix], branches: Sequence[Branch]) -> list[NDArray[np.float32]]:
        """The logits of each branch after the state before it."""
        tokens, ends = [branch.ids for branch in branches], [branch.ends for branch in branches]
        width, longest = max(map(len, tokens)), max(prefix.tokens for prefix in prefixes)
        with torch.inference_mode():
            ids = torch.tensor([row + [0] * (width - len(row)) for row in tokens])
            before = [prefix.tokens for prefix in prefixes]
            # Padding on the right needs no mask: nothing looks at what comes after it.
            mask = torch.tensor([[i >= longest - n for i in range(longest + width)] for n in before])
            hidden = self._pass(ids, self._join(prefixes, longest), mask if min(before) < longest else None)
            logits = []
            for row, positions in enumerate(ends):
                decide, options = hidden[row, len(tokens[row]) - 1], hidden[row, positions]
                logits.append(self._network.head(decide, options).float().cpu().numpy())
        return logits

    def _pass(self, ids: Tensor, cache: DynamicCache, mask: Tensor | None) -> Tensor:
        positions = None
        if mask is not None:
            mask = mask.to(self._device)
            positions = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -ids.size(1) :]
        backbone = self._network.backbone
        ids = ids.to(self._device)
        done = backbone(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        return done.last_hidden_state.float()

    def _row(self, cache: DynamicCache, row: int, length: int) -> TorchPrefix:
        layers = []
        for number, linear in enumerate(self._linear):
            if linear:
                pair: Any = cache.get_conv_state(number), cache.get_recurrent_state(number)
                layers.append(tuple(state[row : row + 1].clone() for state in pair))
            else:
                layer: Any = cache.layers[number]
                layers.append(tuple(each[row : row + 1, :, -length:].clone() for each in (layer.keys, layer.values)))
        return TorchPrefix(layers, length)

    def _join(self, prefixes: Sequence[TorchPrefix], longest: int) -> DynamicCache:
        """A cache with a row for each prefix, keys and values padded on the left."""
        cache = DynamicCache(config=self._network.config)
        for number, linear in enumerate(self._linear):
            pairs = [(prefix.layers[number], longest - prefix.tokens) for prefix in prefixes]
            if linear:
                window, recurrent = (torch.cat([pair[i] for pair, _ in pairs]) for i in (0, 1))
                cache.update_conv_state(window, number, conv_kernel_size=window.size(-1))
                cache.update_recurrent_state(recurrent, number)
            else:
                keys, values = (
                    torch.cat([functional.pad(pair[i], (0, 0, missing, 0)) for pair, missing in pairs]) for i in (0, 1)
                )
                cache.update(keys, values, number)
        return cache
