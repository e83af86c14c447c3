"""Computes a Laya model with ONNX Runtime on the CPU, without torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.lanes import Lanes, available_cores
from observer_core.decision.laya.layout import Inputs
from observer_core.decision.onnx_session import open_session
from observer_core.errors import InputError

INPUTS = {"input_ids", "attention_mask", "marker_pos", "marker_mask", "qtype"}


class OnnxBackend:
    """One row at a time, so many of them side by side as there are cores.

    Without padding an answer depends on nothing but its own row, and the graph needs no mask.

    Raises:
        InputError: the file is missing or is no usable graph.
    """

    rows_at_once = 1

    def __init__(self, file: Path) -> None:
        # That fusion is seven times slower than the two operations it replaces (ONNX Runtime 1.32).
        self._session = open_session(file, without=["SkipLayerNormFusion"])
        # Graphs exported before ask for a mask, which is all ones here.
        self._inputs = [given.name for given in self._session.get_inputs()]
        unknown = sorted(set(self._inputs) - INPUTS)
        if unknown or "logits" not in {given.name for given in self._session.get_outputs()}:
            why = f"input '{unknown[0]}'" if unknown else "no output 'logits'"
            raise InputError(f"{file} is no graph of a Laya model ({why}); copy the run again")
        self._lanes = Lanes(available_cores())

    def logits(self, batches: Sequence[Inputs]) -> list[NDArray[np.float32]]:
        return self._lanes.spread(self._one, batches)

    def _one(self, batch: Inputs) -> NDArray[np.float32]:
        return self._session.run(["logits"], {name: batch[name] for name in self._inputs})[0]  # pyright: ignore
