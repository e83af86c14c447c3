"""Computes a Laya model with PyTorch, on the device the model lies on."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from observer_core.decision.lanes import Lanes
from observer_core.decision.laya.layout import Inputs
from observer_core.decision.laya.model import DecisionModel

GPU_ROWS = 64


class TorchBackend:
    """On a CPU one row at a time, so many of them side by side as torch has threads; elsewhere batches."""

    def __init__(self, model: DecisionModel) -> None:
        self._model = model.eval()
        self._device = next(model.parameters()).device
        on_cpu = self._device.type == "cpu"
        self.rows_at_once = 1 if on_cpu else GPU_ROWS
        threads = torch.get_num_threads()
        self._lanes = Lanes(threads, lambda: torch.set_num_threads(1)) if on_cpu and threads > 1 else None
        # Each lane has set its own number, and with it that of threads to come.
        torch.set_num_threads(threads)

    @classmethod
    def serving(cls, model: DecisionModel) -> "TorchBackend":
        """A model that is used for nothing else: its weights are put in the order the processor reads them best."""
        if next(model.parameters()).device.type == "cpu" and _can_pack():
            pack(model.encoder)
        return cls(model)

    def logits(self, batches: Sequence[Inputs]) -> list[NDArray[np.float32]]:
        if self._lanes is None:
            return [self._one(batch) for batch in batches]
        return self._lanes.spread(self._one, batches)

    def _one(self, batch: Inputs) -> NDArray[np.float32]:
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array).to(self._device) for name, array in batch.items()}
            return self._model(**tensors).cpu().numpy()


class PackedLinear(nn.Module):
    """A linear layer with weights in oneDNN's order: about a tenth faster than the layer it is made from, same result.

    PyTorch does this by itself only for models it compiles, which takes a C++ compiler where the model is served.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        with torch.no_grad():
            self._weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
        self._bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def pack(module: nn.Module) -> None:
    """Replace the linear layers inside a module, which can then only be used, not trained or saved."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child))
        else:
            pack(child)


def _can_pack() -> bool:
    operators = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and all(
        hasattr(operators, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
