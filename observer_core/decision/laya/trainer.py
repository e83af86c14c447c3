"""Trains a Laya model on labeled traces: LoRA on the encoder, the whole head, soft cross-entropy over all questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from observer_core.decision.laya.checkpoint import round_to_half
from observer_core.decision.laya.config import LayaConfig
from observer_core.decision.laya.layout import Layout, Row, collate
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.presets import HEAD_LAYERS, HEAD_MAX_LEN, Preset
from observer_core.decision.training.loop import Fitted, LoopOptions, fit
from observer_core.decision.training.lora import LoraOptions, add_lora, merge_lora
from observer_core.decision.training.progress import MetricSink, Progress
from observer_core.errors import InputError
from observer_core.questions import Question, label_index
from observer_core.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class LayaTraining:
    """Settings of a Laya training; `learning_rate` is the encoder's (LoRA), the head's is `head_learning_rate`."""

    learning_rate: float
    head_learning_rate: float
    lora: LoraOptions
    loop: LoopOptions
    weight_decay: float = 0.01


class RowExamples:
    """Rows with their target distributions and weights, as the loop wants them."""

    def __init__(self, rows: Sequence[Row], targets: Sequence[int], weights: Sequence[float], pad_id: int) -> None:
        self._rows, self._targets, self._weights, self._pad_id = rows, targets, weights, pad_id
        self.lengths = [len(row.ids) for row in rows]

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
    for trace, weight, of_state in zip(traces, weights, layout.rows(states, questions), strict=True):
        if trace.label is None:
            raise ValueError("a training trace has no label")
        for name, row in zip(questions, of_state, strict=True):
            target = label_index(name, trace.label)
            if target is not None:
                rows.append(row)
                targets.append(target)
                row_weights.append(weight)
    return RowExamples(rows, targets, row_weights, layout.pad_id)


def soft_cross_entropy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean over rows, by weight, of −Σ target · log softmax(logits)."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("target", "weight")}
    each = -(batch["target"] * torch.log_softmax(model(**inputs), dim=-1)).sum(-1)
    return (batch["weight"] * each).sum() / batch["weight"].sum()


def held_out_loss(model: nn.Module, examples: RowExamples, tokens_per_batch: int) -> float:
    """The loss over all rows of `examples`, without padding that would cost time."""
    device = next(model.parameters()).device
    order = sorted(range(len(examples.lengths)), key=examples.lengths.__getitem__)
    total, weight, start = 0.0, 0.0, 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and examples.lengths[order[stop]] * (stop + 1 - start) <= tokens_per_batch:
            stop += 1
        batch = {name: tensor.to(device) for name, tensor in examples.batch(order[start:stop]).items()}
        share = float(batch["weight"].sum())
        total += float(soft_cross_entropy(model, batch)) * share
        weight += share
        start = stop
    return total / weight


def fresh_model(preset: Preset, *, max_len: int) -> tuple[DecisionModel, LayaConfig]:
    """The preset's encoder with a new head.

    Raises:
        InputError: `max_len` is more than the encoder can read, or the folder cannot be loaded.
    """
    from transformers import AutoModel

    if max_len > preset.max_len:
        raise InputError(f"{preset.name} reads at most {preset.max_len} tokens, not {max_len}; lower --max-tokens")
    try:
        encoder = AutoModel.from_pretrained(
            preset.folder, attn_implementation="sdpa", dtype=torch.float32, local_files_only=True
        )
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"cannot load the encoder in {preset.folder}: {' '.join(str(error).split())[:200]}") from error
    config = LayaConfig(encoder=preset.base, head_layers=HEAD_LAYERS, max_len=preset.max_len, head_max_len=HEAD_MAX_LEN)
    return DecisionModel(encoder, head_layers=config.head_layers, actions=config.actions), config


def _switch_off_dropout(model: DecisionModel) -> None:
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
    _switch_off_dropout(model)
    model.encoder = add_lora(model.encoder, options.lora)
    model.act_head.requires_grad_(False)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    lora = [p for name, p in trainable.items() if name.startswith("encoder.")]
    head = [p for name, p in trainable.items() if not name.startswith("encoder.")]
    groups = [
        {"params": lora, "lr": options.learning_rate, "weight_decay": options.weight_decay},
        {"params": head, "lr": options.head_learning_rate, "weight_decay": options.weight_decay},
    ]
    fitted = fit(
        model,
        groups,
        train,
        loss=soft_cross_entropy,
        held_out_loss=lambda m: held_out_loss(m, validation, options.loop.tokens_per_batch),
        options=options.loop,
        progress=progress,
        on_metric=on_metric,
    )
    model.encoder = merge_lora(model.encoder)
    model.act_head.requires_grad_(True)
    round_to_half(model)
    model.eval()
    return fitted
