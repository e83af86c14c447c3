"""The training loop: AdamW, one learning-rate cycle, clipped gradients, early stopping on a held-out loss."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from observer_core.decision.training.batches import plan_batches
from observer_core.decision.training.determinism import random_state, reproducible, set_random_state
from observer_core.decision.training.device import autocast, checkpoint_layers, choose_bf16
from observer_core.decision.training.examples import Batch, Examples, OptionShuffle, by_length
from observer_core.decision.training.health import Health, HeldOut, auroc
from observer_core.decision.training.options import Precision, TrainOptions
from observer_core.decision.training.progress import MetricSink, Progress, minutes, no_metric, no_progress
from observer_core.decision.training.session import Stage
from observer_core.decision.training.telemetry import ExampleScore, StepRecord

__all__ = ["Fitted", "LoopOptions", "fit", "reproducible"]

WORSE = 1.02
"""A held-out loss above this multiple of the best one counts against the patience."""

Logits = Callable[[nn.Module, Batch], Tensor]
"""A family's logits of a batch, (rows, options) as in `target`; options that only pad are far below all others."""


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How to train.

    Args:
        epochs: passes over the examples, also a fraction.
        tokens_per_batch: padded tokens computed at once.
        warmup: share of the steps in which the learning rate rises.
        max_grad_norm: gradients are scaled down to this length.
        evaluations: held-out evaluations per epoch.
        patience: evaluations in a row with a loss clearly above the best (`WORSE`) after which training stops. A
            plateau, on which a small model may stay for an epoch before it finds anything, does not count.
        accumulate: batches whose gradients make one optimiser step; a row weighs the same whichever batch it is in.
        gradient_checkpointing: compute the layers again in the backward pass instead of keeping what they gave.
        precision: of the arithmetic; see `device.choose_bf16`.
        permute_options: show the options of choice questions in a new order each epoch.
        seed: decides order and dropout; the same seed gives the same weights bit for bit on a CPU.
    """

    epochs: float
    tokens_per_batch: int
    warmup: float = 0.1
    max_grad_norm: float = 1.0
    evaluations: int = 2
    patience: int = 3
    accumulate: int = 1
    gradient_checkpointing: bool = False
    precision: Precision = "auto"
    permute_options: bool = True
    seed: int = 0

    @classmethod
    def of(cls, options: TrainOptions) -> "LoopOptions":
        """Those of a training's settings that the loop takes."""
        return cls(
            epochs=options.epochs,
            tokens_per_batch=options.tokens_per_batch,
            patience=options.patience,
            accumulate=options.accumulate,
            gradient_checkpointing=options.gradient_checkpointing,
            precision=options.precision,
            permute_options=options.permute_options,
            seed=options.seed,
        )


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a training came to: the best held-out loss and its step, the steps made, tokens trained on per second, and
    where and how precisely it computed (`cpu fp32`)."""

    best_loss: float
    best_step: int
    steps: int
    tokens_per_second: float
    computed_on: str


def fit(
    model: nn.Module,
    groups: Sequence[Mapping[str, Any]],
    examples: Examples,
    held_out: Examples,
    *,
    logits: Logits,
    options: LoopOptions,
    stage: Stage | None = None,
    progress: Progress = no_progress,
    on_metric: MetricSink = no_metric,
) -> Fitted:
    """Train `model` in place; it ends with the weights that had the lowest held-out loss, those of the start included.

    The loss is soft cross-entropy, the mean over rows by weight. With a session that has checkpoints, a training that
    was killed goes on where its last one was written, and ends with the same weights.

    Args:
        groups: AdamW's parameter groups, each with its own `lr`.
        held_out: rows of the question that decides, to stop early on; never permuted.
        logits: the family's forward pass.
        stage: what this part of the training is called, and its session.

    Raises:
        TrainingFailedError: it diverged or collapsed.
    """
    stage = stage or Stage()
    if (before := finished(model, stage, on_metric)) is not None:
        return before
    return _Loop(model, groups, examples, held_out, logits, options, stage, progress, on_metric).run()


def finished(model: nn.Module, stage: Stage, on_metric: MetricSink) -> Fitted | None:
    """What an earlier process made of this stage, its weights and random state put back and its metrics told again;
    `None` if the stage has to be run.
    """
    checkpoint = stage.checkpoint()
    saved = checkpoint.load() if checkpoint else None
    if saved is None or saved["fitted"] is None:
        return None
    _put(dict(model.named_parameters()), saved["best"])
    set_random_state(saved["random"])
    for name, value, step in saved["metrics"]:
        on_metric(name, value, step)
    model.eval()
    return Fitted(**saved["fitted"])


@dataclass(frozen=True, slots=True)
class _Step:
    epoch: int
    batches: list[list[int]]


@dataclass(slots=True)
class _State:
    """Where a training stands, besides weights, optimiser and random numbers."""

    step: int = 0
    best_loss: float = math.inf
    best_spread: float = math.inf
    best_step: int = 0
    worse: int = 0
    tokens: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)


class _Loop:
    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[Mapping[str, Any]],
        examples: Examples,
        held_out: Examples,
        logits: Logits,
        options: LoopOptions,
        stage: Stage,
        progress: Progress,
        on_metric: MetricSink,
    ) -> None:
        from accelerate import Accelerator

        self._examples, self._held_out, self._logits, self._options = examples, held_out, logits, options
        self._stage, self._progress, self._on_metric = stage, progress, on_metric
        self._home = next(model.parameters()).device
        self._accelerator = Accelerator(mixed_precision="no")  # its choice would hold for the whole process
        self._device = self._accelerator.device
        self._bf16 = choose_bf16(options.precision, self._device)
        self._plan = _plan(examples.lengths, options)
        optimizer = torch.optim.AdamW(list(map(dict, groups)))
        total = len(self._plan) + 1
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            [group["lr"] for group in groups],
            total_steps=total,
            # A warm-up of a single step has no length, and torch divides by it.
            pct_start=options.warmup if options.warmup * total > 1 else 0.0,
        )
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)
        self._trainable = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._every = max(1, round(len(self._plan) / (options.epochs * options.evaluations)))
        self._state, self._best = _State(), _copy(self._trainable)
        self._metrics: list[tuple[str, float, int]] = []
        self._health = Health(stage.rate_option)

    def run(self) -> Fitted:
        checkpoint = self._stage.checkpoint()
        saved = checkpoint.load() if checkpoint else None
        with checkpoint_layers(self._model, self._options.gradient_checkpointing):
            if saved is None:
                self._begin()
            else:
                self._restore(saved)
            begun, steps_before = time.perf_counter(), self._state.step
            while self._state.step < len(self._plan) and self._state.worse < self._options.patience:
                self._train_step()
                step = self._state.step
                self._show(time.perf_counter() - begun, step - steps_before)
                if step % self._every == 0 or step == len(self._plan):
                    self._evaluate()
                if checkpoint is not None and checkpoint.due(step):
                    checkpoint.save(self._to_save(None))
            fitted = self._finish()
        if checkpoint is not None:
            checkpoint.save(self._to_save(fitted))
        return fitted

    def _begin(self) -> None:
        held_out = self._measure()
        self._health.start(held_out)
        self._state.best_loss, self._state.best_spread = held_out.loss, held_out.spread
        self._log("validation_loss", held_out.loss, 0)

    def _train_step(self) -> None:
        state, options = self._state, self._options
        started, started_ns = time.perf_counter(), time.time_ns()
        step = self._plan[state.step]
        state.step += 1
        shuffle = OptionShuffle(options.seed, step.epoch) if options.permute_options else None
        batches = [self._examples.batch(rows, shuffle) for rows in step.batches]
        weight = sum(float(batch["weight"].sum()) for batch in batches)
        self._model.train()
        loss, each = 0.0, []
        for batch in batches:
            batch = self._to_device(batch)
            losses = self._row_losses(batch)
            # A share of the step's mean, so that the sum of the batches' gradients is that of one large batch.
            share = (batch["weight"] * losses).sum() / weight
            self._accelerator.backward(share)
            loss += float(share.detach())
            each.append(losses.detach())
        norm = self._accelerator.clip_grad_norm_(self._trainable.values(), options.max_grad_norm)
        norm = float(norm) if norm is not None else 0.0
        self._health.after_step(state.step, loss, norm)
        rate = float(max(self._schedule.get_last_lr()))
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        rows = [row for batch in step.batches for row in batch]
        tokens = sum(self._examples.lengths[row] for row in rows)
        state.tokens += tokens
        state.recent.append(loss)
        state.seconds += time.perf_counter() - started
        for name, value in (("step_loss", loss), ("learning_rate", rate), ("grad_norm", norm)):
            self._log(name, value, state.step)
        if telemetry := self._stage.session.telemetry:
            asked = [(row, about) for row in rows for about in self._examples.about(row)]
            scores = [
                ExampleScore(row, about, loss)
                for (row, about), loss in zip(asked, torch.cat(each).tolist(), strict=True)
            ]
            times = (started_ns, time.time_ns())
            telemetry.step(StepRecord(self._stage.name, state.step, loss, rate, norm, tokens, times, scores))

    def _row_losses(self, batch: Batch) -> Tensor:
        """Soft cross-entropy of each row, float32 (rows,)."""
        with autocast(self._device, self._bf16):
            logits = self._logits(self._model, batch)
        return -(batch["target"] * torch.log_softmax(logits.float(), dim=-1)).sum(-1)

    def _measure(self) -> HeldOut:
        """The loss and the probabilities over all held-out rows, without padding that would cost time."""
        self._model.eval()
        losses, weights, p, targets = [], [], [], []
        with torch.inference_mode():
            for rows in by_length(self._held_out.lengths, self._options.tokens_per_batch):
                batch = self._to_device(self._held_out.batch(rows))
                with autocast(self._device, self._bf16):
                    log_p = torch.log_softmax(self._logits(self._model, batch).float(), dim=-1)
                losses.append(-(batch["target"] * log_p).sum(-1).cpu())
                weights.append(batch["weight"].cpu())
                p.append(log_p.exp().cpu().double().numpy())
                targets.append(batch["target"].cpu().numpy())
        weight = torch.cat(weights)
        loss = float((torch.cat(losses) * weight).sum() / weight.sum())
        joined, target = np.concatenate(p), np.concatenate(targets)
        ranked = auroc(joined[:, 1], target[:, 1] > 0.5) if joined.shape[1] == 2 else None
        return HeldOut(loss, joined, ranked)

    def _evaluate(self) -> None:
        state = self._state
        self._log("train_loss", float(np.mean(state.recent)), state.step)
        state.recent = []
        held_out = self._measure()
        self._log("validation_loss", held_out.loss, state.step)
        if held_out.auroc is not None:
            self._log("validation_auroc", held_out.auroc, state.step)
        self._health.after_evaluation(state.step, held_out.spread)
        if held_out.loss < state.best_loss:
            state.best_loss, state.best_spread = held_out.loss, held_out.spread
            state.best_step, state.worse = state.step, 0
            self._best = _copy(self._trainable)
        else:
            state.worse = state.worse + 1 if held_out.loss > WORSE * state.best_loss else 0

    def _finish(self) -> Fitted:
        state = self._state
        self._health.at_the_end(state.best_step, state.best_spread)
        _put(self._trainable, self._best)
        self._model.eval()
        self._model.to(self._home)
        speed = state.tokens / max(state.seconds, 1e-9)
        self._log("train_tokens_per_second", speed, state.step)
        computed_on = f"{self._device.type} {'bf16' if self._bf16 else 'fp32'}"
        return Fitted(state.best_loss, state.best_step, state.step, speed, computed_on)

    def _to_device(self, batch: Batch) -> Batch:
        return {name: tensor.to(self._device) for name, tensor in batch.items()}

    def _log(self, name: str, value: float, step: int) -> None:
        self._metrics.append((name, value, step))
        self._on_metric(name, value, step)

    def _show(self, seconds: float, steps: int) -> None:
        state, total = self._state, len(self._plan)
        loss = np.mean(list(self._health.losses))
        left = seconds / steps * (total - state.step)
        speed = state.tokens / max(state.seconds, 1e-9)
        detail = f"step {state.step}/{total}, loss {loss:.3f}, {speed:,.0f} tokens/s, {minutes(left)} left"
        self._progress(f"{self._stage.doing}: {detail}", state.step / total)

    def _to_save(self, fitted: Fitted | None) -> dict[str, Any]:
        """Everything that decides how the training goes on; of a finished stage only what it came to."""
        saved = {"fitted": None if fitted is None else asdict(fitted), "best": self._best, "random": random_state()}
        saved["metrics"] = self._metrics
        if fitted is not None:
            return saved
        return saved | {
            "state": asdict(self._state),
            "health": self._health.state(),
            "weights": _copy(self._trainable),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        self._state, self._best = _State(**saved["state"]), saved["best"]
        self._health.restore(saved["health"])
        _put(self._trainable, saved["weights"])
        self._optimizer.load_state_dict(saved["optimizer"])
        self._schedule.load_state_dict(saved["schedule"])
        set_random_state(saved["random"])
        self._metrics = saved["metrics"]
        for name, value, step in self._metrics:
            self._on_metric(name, value, step)
        step, total = self._state.step, len(self._plan)
        self._progress(f"{self._stage.doing}, resumed: {step} of {total} steps were done", step / total)


def _plan(lengths: Sequence[int], options: LoopOptions) -> list[_Step]:
    """All steps of a training, which follow from the seed alone."""
    rng = np.random.default_rng(options.seed)
    steps = []
    for epoch in range(math.ceil(options.epochs)):
        batches = plan_batches(lengths, options.tokens_per_batch, rng)
        steps += [_Step(epoch, batches[i : i + options.accumulate]) for i in range(0, len(batches), options.accumulate)]
    return steps[: max(1, round(len(steps) * options.epochs / math.ceil(options.epochs)))]


def _copy(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def _put(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
