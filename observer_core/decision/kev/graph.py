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
from observer_core.decision.kev.model import KevNetwork, gather
from observer_core.decision.kev.onnx_backend import OnnxBackend
from observer_core.decision.kev.runtime import Backend, KevModel
from observer_core.decision.kev.torch_backend import TorchBackend
from observer_core.decision.onnx import Exported, export_checked, export_graph
from observer_core.decision.protocol import read
from observer_core.questions import Question


class BranchGraph(nn.Module):
    """Branches after one state. Reading a state is a row without options that has an empty past.

    Inputs: `input_ids` (rows, tokens), `option_pos` (rows, options) and `decide_pos` (rows,), padded on the right;
    `past` (layers, 2, heads, tokens before, width). Outputs: `logits` (rows, options), and `present`, what `past`
    becomes after the first row.
    """

    def __init__(self, network: KevNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, option_pos: Tensor, decide_pos: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        cache: Any = DynamicCache(config=self.network.config)
        rows, tokens = input_ids.shape
        for number in range(past.size(0)):
            keys, values = (past[number, i][None].expand(rows, -1, -1, -1) for i in (0, 1))
            cache.update(keys, values, number)
        before = past.size(3)
        positions = torch.arange(tokens, device=input_ids.device) + before
        # Spelt out: the mask transformers would make is one thing with a past and another without.
        mask = torch.arange(before + tokens, device=input_ids.device)[None, :] <= positions[:, None]
        hidden = self.network.backbone(
            input_ids=input_ids,
            attention_mask=mask[None, None].expand(rows, -1, -1, -1),
            position_ids=positions[None].expand(rows, -1),
            past_key_values=cache,
        ).last_hidden_state
        logits = self.network.head(gather(hidden, decide_pos[:, None])[:, 0], gather(hidden, option_pos))
        present = torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers])
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
    # Rows, tokens, options and tokens before differ, so that no dimension is taken for another.
    example = {
        "input_ids": np.zeros((2, 13), dtype=np.int64),
        "option_pos": np.zeros((2, 3), dtype=np.int64),
        "decide_pos": np.zeros(2, dtype=np.int64),
        "past": np.zeros((network.config.num_hidden_layers, 2, heads, 17, width), dtype=np.float32),
    }
    dims = {
        "input_ids": ("rows", "tokens"),
        "option_pos": ("rows", "options"),
        "decide_pos": ("rows",),
        "past": ("", "", "", "before", ""),
    }

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
