"""The ONNX graph of a Kev model: one row that continues from what was kept of a state, so that a state is read once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from observer_core.decision.kev.config import KevConfig
from observer_core.decision.kev.layout import Layout
from observer_core.decision.kev.model import KevNetwork
from observer_core.decision.kev.onnx_backend import OnnxBackend
from observer_core.decision.kev.runtime import Backend, KevModel
from observer_core.decision.kev.torch_backend import TorchBackend
from observer_core.decision.onnx import Exported, export_checked, export_graph
from observer_core.decision.protocol import read
from observer_core.questions import Question


class BranchGraph(nn.Module):
    """`input_ids` (tokens,), `option_pos` (options,) and `past` (layers, 2, heads, tokens before, width) to `logits`
    (options,) and `present`, what `past` becomes; `<decide>` is the last token. Reading a state has an empty past."""

    def __init__(self, network: KevNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, option_pos: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        cache: Any = DynamicCache(config=self.network.config)
        for number in range(past.size(0)):
            cache.update(past[number, 0][None], past[number, 1][None], number)
        before, tokens = past.size(3), input_ids.size(0)
        positions = torch.arange(tokens, device=input_ids.device) + before
        # Spelt out: the mask transformers would make is one thing with a past and another without.
        mask = torch.arange(before + tokens, device=input_ids.device)[None, :] <= positions[:, None]
        hidden = self.network.backbone(
            input_ids=input_ids[None],
            attention_mask=mask[None, None],
            position_ids=positions[None],
            past_key_values=cache,
        ).last_hidden_state[0]
        logits = self.network.head(hidden[-1], hidden[option_pos])
        present = torch.stack([torch.cat([layer.keys, layer.values]) for layer in cache.layers])
        return logits, present


def export_kev(
    network: KevNetwork,
    config: KevConfig,
    layout: Layout,
    states: Sequence[str],
    questions: Mapping[str, Question],
    folder: Path,
    *,
    int8: bool,
) -> Exported:
    """Export the graph of a network with LoRA merged, and serve from it only if it answers as torch does.

    Returns:
        What the manifest records (see `export_checked`); for a hybrid backbone that there is no graph, and why.
    """
    if network.hybrid:
        return Exported(
            served=None, note="the base has recurrent layers, which the exporter cannot express; torch serves"
        )
    heads = network.config.num_key_value_heads
    width = (
        getattr(network.config, "head_dim", None) or network.config.hidden_size // network.config.num_attention_heads
    )
    branch = layout.branch("", next(iter(questions.values())))
    before = len(branch.ids) + 3  # differs from every other size, so that no dimension is taken for another
    example = {
        "input_ids": np.array(branch.ids, dtype=np.int64),
        "option_pos": np.array(branch.ends, dtype=np.int64),
        "past": np.zeros((network.config.num_hidden_layers, 2, heads, before, width), dtype=np.float32),
    }
    dims = {"input_ids": ("tokens",), "option_pos": ("options",), "past": ("", "", "", "before", "")}

    def answers(backend: Backend) -> np.ndarray:
        given = read(KevModel(layout, backend, config, kept_bytes=0), states, questions)
        return np.array([p for of in given for answer in of.answers.values() for p in answer.probabilities.values()])

    return export_checked(
        lambda file: export_graph(BranchGraph(network).eval(), example, dims, file, outputs=("logits", "present")),
        lambda file: answers(OnnxBackend(file)),
        answers(TorchBackend(network)),
        folder,
        int8=int8,
    )
