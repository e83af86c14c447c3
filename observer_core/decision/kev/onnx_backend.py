"""Computes a Kev model with ONNX Runtime, without torch: one graph that continues from what was kept of a state."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.kev.layout import Branch
from observer_core.decision.onnx_session import open_session
from observer_core.errors import InputError


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
        self._session = open_session(file)
        past = next((given for given in self._session.get_inputs() if given.name == "past"), None)
        if past is None:
            raise InputError(f"{file} is no graph of a Kev model (no input 'past'); copy the run again")
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
