"""The training loop: AdamW, one learning-rate cycle, clipped gradients, early stopping on a held-out loss."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from observer_core.decision.training.batches import plan_batches
from observer_core.decision.training.progress import MetricSink, Progress
from observer_core.errors import ObserverError

WORSE = 1.02
"""A held-out loss above this multiple of the best one counts against the patience."""


class Examples(Protocol):
    """Training rows: their lengths in tokens, and any of them as padded tensors."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How to train.

    Args:
        epochs: passes over the examples, also a fraction.
        tokens_per_batch: padded tokens of one optimiser step.
        warmup: share of the steps in which the learning rate rises.
        max_grad_norm: gradients are scaled down to this length.
        evaluations: held-out evaluations per epoch.
        patience: evaluations in a row with a loss clearly above the best (`WORSE`) after which training stops. A
            plateau, on which a small model may stay for an epoch before it finds anything, does not count.
        seed: decides order and dropout; the same seed gives the same weights bit for bit on a CPU.
    """

    epochs: float
    tokens_per_batch: int
    warmup: float = 0.1
    max_grad_norm: float = 1.0
    evaluations: int = 2
    patience: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a training came to: the best held-out loss and its step, the steps made, tokens trained on per second."""

    best_loss: float
    best_step: int
    steps: int
    tokens_per_second: float


@contextlib.contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seeds torch and asks it for deterministic kernels; the caller's random state and setting come back afterwards."""
    before = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore  # a debugging aid that costs time
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


def fit(
    model: nn.Module,
    groups: Sequence[Mapping[str, Any]],
    examples: Examples,
    *,
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor],
    held_out_loss: Callable[[nn.Module], float],
    options: LoopOptions,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train `model` in place; it ends with the weights that had the lowest held-out loss.

    Args:
        groups: AdamW's parameter groups, each with its own `lr`.
        loss: the loss of a batch, a mean over rows.
        held_out_loss: the loss to stop early on, called with the model in evaluation mode.

    Raises:
        ObserverError: the loss or the gradients are no longer finite.
    """
    from accelerate import Accelerator

    accelerator = Accelerator()
    rng = np.random.default_rng(options.seed)
    plan = _batches(examples.lengths, options, rng)
    optimizer = torch.optim.AdamW(list(map(dict, groups)))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in groups], total_steps=len(plan) + 1, pct_start=options.warmup
    )
    model, optimizer = accelerator.prepare(model, optimizer)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    every = max(1, round(len(plan) / (options.epochs * options.evaluations)))
    best, best_step, best_weights, worse = math.inf, 0, _copy(trainable), 0
    step, tokens, seconds, recent = 0, 0, 0.0, []
    for step, rows in enumerate(plan, 1):
        started = time.perf_counter()
        batch = {name: tensor.to(accelerator.device) for name, tensor in examples.batch(rows).items()}
        model.train()
        value = loss(model, batch)
        accelerator.backward(value)
        norm = accelerator.clip_grad_norm_(trainable.values(), options.max_grad_norm)
        recent.append(float(value.detach()))
        if not (math.isfinite(recent[-1]) and bool(torch.isfinite(torch.as_tensor(norm)))):
            raise ObserverError(f"training diverged at step {step} (loss {recent[-1]}); lower the learning rate (--lr)")
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        tokens += sum(examples.lengths[row] for row in rows)
        seconds += time.perf_counter() - started
        progress("training", step / len(plan))
        if step % every == 0 or step == len(plan):
            on_metric("train_loss", float(np.mean(recent)), step)
            model.eval()
            with torch.inference_mode():
                held_out = held_out_loss(model)
            on_metric("validation_loss", held_out, step)
            recent = []
            if held_out < best:
                best, best_step, best_weights, worse = held_out, step, _copy(trainable), 0
            else:
                worse = worse + 1 if held_out > WORSE * best else 0
            if worse >= options.patience:
                break
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(best_weights[name])
    model.eval()
    speed = tokens / max(seconds, 1e-9)
    on_metric("train_tokens_per_second", speed, step)
    return Fitted(best, best_step, step, speed)


def _batches(lengths: Sequence[int], options: LoopOptions, rng: np.random.Generator) -> list[list[int]]:
    plan: list[list[int]] = []
    for _ in range(math.ceil(options.epochs)):
        plan += plan_batches(lengths, options.tokens_per_batch, rng)
    return plan[: max(1, round(len(plan) * options.epochs / math.ceil(options.epochs)))]


def _copy(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
