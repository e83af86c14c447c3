"""Computes a Kev model with ONNX Runtime, without torch: one graph that continues from what was kept of a state."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.kev.layout import Branch
from observer_core.errors import InputError, one_line


@dataclass(frozen=True, slots=True)
class OnnxPrefix:
    """Keys and values of a state, float32 (layers, 2, heads, tokens, width)."""

    past: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.past.nbytes


class OnnxBackend:
    """ONNX Runtime on the CPU: one state at a time, its branches together.

    Raises:
        InputError: the file is missing or is no usable graph.
    """

    tokens_at_once = 4096
    states_together = False

    def __init__(self, file: Path) -> None:
        import onnxruntime as ort

        if not file.is_file():
            raise InputError(f"{file} is missing; copy the run again or train anew")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Spinning threads would take the cores from the rest of the service between two rows.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            past = next(given for given in self._session.get_inputs() if given.name == "past")
        except Exception as error:  # the library's exceptions share no base class but Exception
            raise InputError(f"{file} is not a usable ONNX graph ({one_line(error)}); copy the run again") from error
        layers, both, heads, _, width = past.shape
        self._empty = np.zeros((layers, both, heads, 0, width), dtype=np.float32)

    def read(self, states: Sequence[Sequence[int]]) -> list[OnnxPrefix]:
        return [OnnxPrefix(self._run("present", [state], [[0]], self._empty)) for state in states]

    def answer(self, prefixes: Sequence[OnnxPrefix], branches: Sequence[Branch]) -> list[NDArray[np.float32]]:
        """The logits of each branch; all follow one state (`states_together`)."""
        tokens, ends = [branch.ids for branch in branches], [branch.ends for branch in branches]
        logits = self._run("logits", tokens, ends, prefixes[0].past)
        return [row[: len(positions)] for row, positions in zip(logits, ends, strict=True)]

    def _run(
        self, output: str, ids: Sequence[Sequence[int]], options: Sequence[Sequence[int]], past: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        given = {
            "input_ids": _padded(ids),
            "option_pos": _padded(options),
            "decide_pos": np.array([len(row) - 1 for row in ids], dtype=np.int64),
            "past": past,
        }
        return self._session.run([output], given)[0]  # pyright: ignore


def _padded(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Padded with 0 on the right, where nothing looks at it."""
    out = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
