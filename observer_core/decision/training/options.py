"""The settings of a training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train; the defaults are for about a thousand traces on two cores.

    Args:
        preset: the starting point of family laya: a preset's name or an encoder's folder.
        init_from: an earlier run of the same family to go on from.
        epochs: passes over the training rows (a row is a trace and one question).
        learning_rate: of LoRA on the encoder; the head's is `head_learning_rate`.
        max_tokens: of a row: question, options and state.
        tokens_per_batch: of one optimiser step.
        onnx: export a graph, so that serving needs no torch.
        int8: also export a quantised graph, and serve that one.
        weights: count each trace by 1 / (keep probability × review probability).
    """

    family: Literal["laya", "baseline"]
    preset: str = "laya-mini"
    init_from: Path | None = None
    epochs: float = 1.5
    learning_rate: float = 1e-3
    head_learning_rate: float = 5e-4
    max_tokens: int = 320
    tokens_per_batch: int = 2048
    lora_rank: int = 8
    seed: int = 0
    onnx: bool = True
    int8: bool = False
    weights: bool = False
