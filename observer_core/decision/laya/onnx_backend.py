"""Computes a Laya model with ONNX Runtime on the CPU, without torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.lanes import Lanes, available_cores
from observer_core.decision.laya.layout import Inputs
from observer_core.errors import InputError, one_line


class OnnxBackend:
    """One row at a time, so many of them side by side as there are cores.

    Without padding an answer depends on nothing but its own row, and the graph needs no mask.

    Raises:
        InputError: the file is missing or is no usable graph.
    """

    rows_at_once = 1

    def __init__(self, file: Path) -> None:
        import onnxruntime as ort

        if not file.is_file():
            raise InputError(f"{file} is missing; copy the run again or train anew")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Spinning threads would take the cores from the rest of the service between two rows.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            # That fusion is seven times slower than the two operations it replaces (ONNX Runtime 1.32).
            self._session = ort.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
            )
        except Exception as error:  # the library's exceptions share no base class but Exception
            raise InputError(f"{file} is not a usable ONNX graph ({one_line(error)}); copy the run again") from error
        # Graphs exported before ask for a mask, which is all ones here.
        self._inputs = [given.name for given in self._session.get_inputs()]
        self._lanes = Lanes(available_cores())

    def logits(self, batches: Sequence[Inputs]) -> list[NDArray[np.float32]]:
        return self._lanes.spread(self._one, batches)

    def _one(self, batch: Inputs) -> NDArray[np.float32]:
        return self._session.run(["logits"], {name: batch[name] for name in self._inputs})[0]  # pyright: ignore
