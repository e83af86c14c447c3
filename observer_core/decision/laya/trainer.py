"""Trains a Laya model on labeled traces: soft cross-entropy over all questions, in two stages.

A new head first learns on the frozen encoder, whose outputs are computed once and kept; then LoRA on the encoder and
the head go on together, gently. Started together, the random head's gradients wreck the encoder before the head has
found anything (A. Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features", arXiv 2202.10054).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from observer_core.decision.laya.checkpoint import round_to_half
from observer_core.decision.laya.config import LayaConfig
from observer_core.decision.laya.encoders import load_encoder
from observer_core.decision.laya.layout import Layout, Row, collate
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.presets import HEAD_LAYERS, HEAD_MAX_LEN, Preset
from observer_core.decision.training.loop import Fitted, LoopOptions, fit
from observer_core.decision.training.lora import LoraOptions, add_lora, merge_lora
from observer_core.decision.training.progress import MetricSink, Progress, part
from observer_core.errors import InputError
from observer_core.questions import Question, label_index
from observer_core.traces.trace import Trace

HEAD_BATCH = 4
"""Batches of the head alone are this many times larger: with small ones a new head fits noise within two passes."""
HEAD_ROWS = 8192
"""The head alone learns on at most this many rows: their encoded states are held in memory (about 1 GB)."""


@dataclass(frozen=True, slots=True)
class LayaTraining:
    """Settings of a Laya training.

    Args:
        learning_rate: of LoRA and head together.
        head_learning_rate: of the head alone, before.
        head_epochs: passes of the head alone; 0 for a head that has learnt already.
        loop: of LoRA and head together.
    """

    learning_rate: float
    head_learning_rate: float
    head_epochs: float
    lora: LoraOptions
    loop: LoopOptions
    weight_decay: float = 0.01


class Examples(Protocol):
    """Rows by number, their lengths in tokens, and batches of them for a loss."""

    lengths: list[int]

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]: ...


class RowExamples:
    """Rows with their target distributions and weights, as the loop wants them."""

    def __init__(self, rows: Sequence[Row], targets: Sequence[int], weights: Sequence[float], pad_id: int) -> None:
        self._rows, self._targets, self._weights, self._pad_id = rows, targets, weights, pad_id
        self.lengths = [len(row.ids) for row in rows]

    def subset(self, rows: Sequence[int]) -> "RowExamples":
        """Some of the rows, in that order."""
        targets, weights = [self._targets[i] for i in rows], [self._weights[i] for i in rows]
        return RowExamples([self._rows[i] for i in rows], targets, weights, self._pad_id)

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """The inputs of `layout.collate` with `target` float32 (rows, options) and `weight` float32 (rows,)."""
        arrays = collate([self._rows[i] for i in rows], self._pad_id)
        target = np.zeros(arrays["marker_mask"].shape, dtype=np.float32)
        target[np.arange(len(rows)), [self._targets[i] for i in rows]] = 1.0
        weight = np.array([self._weights[i] for i in rows], dtype=np.float32)
        return {name: torch.from_numpy(a) for name, a in (arrays | {"target": target, "weight": weight}).items()}


def make_examples(
    layout: Layout,
    states: Sequence[str],
    traces: Sequence[Trace],
    weights: Sequence[float],
    questions: Mapping[str, Question],
) -> RowExamples:
    """One row per trace and question that its label answers; a state that is too long is cut, never left out."""
    rows, targets, row_weights = [], [], []
    for trace, weight, state in zip(traces, weights, states, strict=True):
        if trace.label is None:
            raise ValueError("a training trace has no label")
        for name, row in zip(questions, layout.rows(state, questions), strict=True):
            target = label_index(name, trace.label)
            if target is not None:
                rows.append(row)
                targets.append(target)
                row_weights.append(weight)
    return RowExamples(rows, targets, row_weights, layout.pad_id)


class EncodedExamples:
    """Rows with the frozen encoder's output in place of their tokens, kept as float16."""

    def __init__(self, encoder: nn.Module, examples: RowExamples, tokens_per_batch: int, done: Progress) -> None:
        self._examples = examples
        self.lengths = examples.lengths
        self._hidden: dict[int, Tensor] = {}
        encoder.eval()
        with torch.inference_mode():
            for rows in by_length(self.lengths, tokens_per_batch):
                batch = examples.batch(rows)
                device = next(encoder.parameters()).device
                inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
                hidden = encoder(**inputs).last_hidden_state.cpu()
                for row, states in zip(rows, hidden, strict=True):
                    self._hidden[row] = states[: self.lengths[row]].half()
                done("reading the rows once", len(self._hidden) / len(self.lengths))

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """As `RowExamples.batch`, with `hidden` float32 (rows, tokens, width) for `input_ids`."""
        batch = self._examples.batch(rows)
        del batch["input_ids"]
        batch["hidden"] = nn.utils.rnn.pad_sequence([self._hidden[row] for row in rows], batch_first=True).float()
        return batch


def soft_cross_entropy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean over rows, by weight, of −Σ target · log softmax(logits); from `hidden` when the batch has it."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("target", "weight")}
    logits = model.decide(**inputs) if "hidden" in inputs else model(**inputs)  # pyright: ignore[reportCallIssue]
    each = -(batch["target"] * torch.log_softmax(logits, dim=-1)).sum(-1)
    return (batch["weight"] * each).sum() / batch["weight"].sum()


def by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """All rows from short to long, in batches of at most that many padded tokens."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and lengths[row] * (len(batch) + 1) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def held_out_loss(model: nn.Module, examples: Examples, tokens_per_batch: int) -> float:
    """The loss over all rows of `examples`, without padding that would cost time."""
    device = next(model.parameters()).device
    total = weight = 0.0
    for rows in by_length(examples.lengths, tokens_per_batch):
        batch = {name: tensor.to(device) for name, tensor in examples.batch(rows).items()}
        share = float(batch["weight"].sum())
        total += float(soft_cross_entropy(model, batch)) * share
        weight += share
    return total / weight


def fresh_model(preset: Preset, *, max_len: int) -> tuple[DecisionModel, LayaConfig]:
    """The preset's encoder with a new head.

    Raises:
        InputError: `max_len` is more than the encoder can read, or the folder cannot be loaded.
    """
    if max_len > preset.max_len:
        raise InputError(f"{preset.name} reads at most {preset.max_len} tokens, not {max_len}; lower --max-tokens")
    encoder = load_encoder(preset.folder)
    config = LayaConfig(encoder=preset.base, head_layers=HEAD_LAYERS, max_len=preset.max_len, head_max_len=HEAD_MAX_LEN)
    return DecisionModel(encoder, head_layers=config.head_layers, actions=config.actions), config


def switch_off_dropout(model: DecisionModel) -> None:
    """Keep dropout only where new weights are learnt, in the head.

    In the frozen encoder, and on attention weights anywhere, it costs a third of the training speed on a CPU (random
    numbers, and no fused attention).
    """
    for module in model.encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for module in model.head.modules() if model.head is not None else ():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0


def parameter_groups(model: DecisionModel, encoder: float, head: float, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's groups: what is trainable in the encoder at one rate, the head at another; the action head at none."""
    model.act_head.requires_grad_(False)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    in_encoder = [p for name, p in trainable.items() if name.startswith("encoder.")]
    in_head = [p for name, p in trainable.items() if not name.startswith("encoder.")]
    return [
        {"params": in_encoder, "lr": encoder, "weight_decay": weight_decay},
        {"params": in_head, "lr": head, "weight_decay": weight_decay},
    ]


def train_head(
    model: DecisionModel,
    train: RowExamples,
    validation: RowExamples,
    options: LayaTraining,
    *,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train the head alone on the outputs of the frozen encoder, at most `HEAD_ROWS` rows.

    Raises:
        ObserverError: the training diverged.
    """
    tokens = HEAD_BATCH * options.loop.tokens_per_batch
    some = np.random.default_rng(options.loop.seed).permutation(len(train.lengths))[:HEAD_ROWS].tolist()
    model.encoder.requires_grad_(False)
    encoded = EncodedExamples(model.encoder, train.subset(some), tokens, part(progress, 0.0, 0.6))
    held_out = EncodedExamples(model.encoder, validation, tokens, part(progress, 0.6, 0.7))
    return fit(
        model,
        parameter_groups(model, 0.0, options.head_learning_rate, options.weight_decay)[1:],
        encoded,
        loss=soft_cross_entropy,
        held_out_loss=lambda m: held_out_loss(m, held_out, tokens),
        options=replace(options.loop, epochs=options.head_epochs, tokens_per_batch=tokens),
        progress=part(progress, 0.7, 1.0),
        on_metric=lambda name, value, step: on_metric(f"head/{name}", value, step),
    )


def train_laya(
    model: DecisionModel,
    train: RowExamples,
    validation: RowExamples,
    options: LayaTraining,
    *,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train in place; the model ends with LoRA merged and its weights rounded to what a checkpoint holds.

    Raises:
        ObserverError: the training diverged.
    """
    switch_off_dropout(model)
    lora_progress = progress
    if options.head_epochs:
        train_head(model, train, validation, options, progress=part(progress, 0.0, 0.3), on_metric=on_metric)
        lora_progress = part(progress, 0.3, 1.0)
    model.encoder = add_lora(model.encoder, options.lora)
    groups = parameter_groups(model, options.learning_rate, options.learning_rate, options.weight_decay)
    fitted = fit(
        model,
        groups,
        train,
        loss=soft_cross_entropy,
        held_out_loss=lambda m: held_out_loss(m, validation, options.loop.tokens_per_batch),
        options=options.loop,
        progress=lora_progress,
        on_metric=on_metric,
    )
    model.encoder = merge_lora(model.encoder)
    round_to_half(model)
    model.eval()
    return fitted
