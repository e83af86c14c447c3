"""Computes a Laya model with PyTorch, on the device the model lies on."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from observer_core.decision.lanes import Lanes
from observer_core.decision.laya.layout import Inputs
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.packed import can_pack, pack

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
        """A model that is used for nothing else: on a CPU its layers are made over for that."""
        if next(model.parameters()).device.type == "cpu" and can_pack():
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
