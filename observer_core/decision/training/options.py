"""The settings of a training."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from observer_core.errors import InputError

BASELINE = "baseline"

Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train; the defaults are for about a thousand traces on two cores.

    Args:
        preset: the starting point: a preset's name, or the folder of an encoder (laya) or decoder (kev); the
            family's own small one when not given.
        base: the folder of the backbone that a Kev checkpoint belongs to, on machines without a hub.
        init_from: an earlier run of the same family to go on from; see `refuse_idle`.
        epochs: passes over the training rows (a row is a trace and one question) with LoRA on the encoder.
        learning_rate: of LoRA and the head together.
        head_epochs: passes of a new head alone, before LoRA, on the frozen encoder; cheap.
        head_learning_rate: of the head alone.
        max_tokens: of a row: question, options and state.
        tokens_per_batch: padded tokens computed at once; memory grows with it.
        accumulate: batches whose gradients make one optimiser step.
        gradient_checkpointing: keep only the layers' inputs and compute the rest again: less memory, a third slower.
        precision: of the arithmetic; weights are always fp32. `auto` is bf16 on a GPU that has it, else fp32.
        patience: held-out evaluations in a row, clearly worse than the best, after which training stops.
        failure: also learn which seeded fault a trace has, a choice question.
        permute_options: show the options of choice questions in a new order each epoch; those of a noul and a score
            have a fixed one.
        weights: count each trace by 1 / (keep probability × review probability).
        replay_share: of the training traces, how many come from the replayed data; not with `replay_rows`.
        replay_rows: that many of them instead of a share.
        checkpoint_seconds: a killed training loses at most this much time (and one step).
        checkpoint_steps: also write a checkpoint after this many steps.
        onnx: export a graph, so that serving needs no torch.
        int8: also export a quantised graph, and serve that one.

    Raises:
        InputError: a value makes no sense; names the option of `observer train`.
    """

    family: Literal["laya", "kev", "baseline"]
    preset: str | None = None
    base: Path | None = None
    init_from: Path | None = None
    epochs: float = 1.0
    learning_rate: float = 1e-4
    head_epochs: float = 8.0
    head_learning_rate: float = 1e-4
    max_tokens: int = 256
    tokens_per_batch: int = 2048
    accumulate: int = 1
    gradient_checkpointing: bool = False
    precision: Precision = "auto"
    patience: int = 3
    failure: bool = False
    permute_options: bool = True
    lora_rank: int = 8
    seed: int = 0
    weights: bool = False
    replay_share: float = 0.3
    replay_rows: int | None = None
    checkpoint_seconds: float = 60.0
    checkpoint_steps: int | None = None
    onnx: bool = True
    int8: bool = False

    def __post_init__(self) -> None:
        above_zero = {
            "epochs": self.epochs,
            "lr": self.learning_rate,
            "head-lr": self.head_learning_rate,
            "max-tokens": self.max_tokens,
            "batch-tokens": self.tokens_per_batch,
            "accumulate": self.accumulate,
            "patience": self.patience,
            "lora-rank": self.lora_rank,
        }
        for name, value in above_zero.items():
            if not 0 < value < float("inf"):
                raise InputError(f"--{name} must be a number above 0, not {value}; leave it out for the default")
        for name, value in (
            ("seed", self.seed),
            ("head-epochs", self.head_epochs),
            ("checkpoint-seconds", self.checkpoint_seconds),
            ("replay-rows", self.replay_rows or 0),
        ):
            if not 0 <= value < float("inf"):
                raise InputError(f"--{name} must be a number of 0 or more, not {value}; leave it out for the default")
        if self.seed >= 2**63:
            raise InputError(f"--seed must be below 2**63, not {self.seed}; leave it out for the default")
        if self.base is not None and self.family != "kev":
            raise InputError(f"--base belongs to Kev checkpoints, not to family {self.family}; leave it out")
        if self.family == BASELINE and (self.preset is not None or self.init_from is not None):
            raise InputError("the baseline starts from nothing; leave out --preset and --init-from")
        if self.int8 and not self.onnx:
            raise InputError("--int8 quantises the graph that --no-onnx leaves out; give one of them")
        if self.checkpoint_steps is not None and self.checkpoint_steps < 1:
            raise InputError(f"--checkpoint-steps must be 1 or more, not {self.checkpoint_steps}; leave it out")
        if not 0 <= self.replay_share < 1:
            raise InputError(f"--replay-share must be from 0 to below 1, not {self.replay_share}; try 0.3")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise InputError(f"--precision must be auto, fp32 or bf16, not '{self.precision}'")


def refuse_idle(family: str, given: Collection[str]) -> None:
    """Refuse options without effect where a training goes on from an earlier run.

    Its head has learnt already, so there are no passes of the head alone; Kev's LoRA goes on too, in the rank it has
    (Laya's was merged into the encoder, and a new one is trained).

    Args:
        given: the fields of `TrainOptions` that somebody chose.

    Raises:
        InputError: one has none; names the option of `observer train`.
    """
    idle = {"head_epochs": "--head-epochs", "head_learning_rate": "--head-lr"}
    if family == "kev":
        idle["lora_rank"] = "--lora-rank"
    for name, option in idle.items():
        if name in given:
            raise InputError(f"{option} has no effect on an earlier run that is gone on from; leave it out")
