"""Trains a Laya model on labeled traces: soft cross-entropy over all questions, in two stages.

A new head first learns on the frozen encoder, whose outputs are computed once and kept; then LoRA on the encoder and
the head go on together, gently. Started together, the random head's gradients wreck the encoder before the head has
found anything (A. Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features", arXiv 2202.10054).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from observer_core.decision.laya.checkpoint import round_to_half
from observer_core.decision.laya.config import LayaConfig
from observer_core.decision.laya.encoders import load_encoder
from observer_core.decision.laya.layout import TYPE_IDS, Layout, Row, collate, option_names
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.presets import HEAD_LAYERS, HEAD_MAX_LEN, Preset
from observer_core.decision.training.data import About
from observer_core.decision.training.examples import (
    Batch,
    Example,
    OptionShuffle,
    RowExamples,
    RowForm,
    by_length,
    inputs_of,
)
from observer_core.decision.training.loop import Fitted, LoopOptions, finished, fit
from observer_core.decision.training.lora import LoraOptions, add_lora, merge_lora
from observer_core.decision.training.progress import MetricSink, Progress, part
from observer_core.decision.training.session import Session
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


def row_form(pad_id: int) -> RowForm[Row]:
    """Laya's rows for `RowExamples`."""
    return RowForm(
        length=lambda row: len(row.ids),
        options=lambda row: len(row.markers),
        is_choice=lambda row: row.type_id == TYPE_IDS["choice"],
        permute=permute_options,
        collate=lambda rows: collate(rows, pad_id),
    )


def permute_options(row: Row, order: Sequence[int]) -> Row:
    """The row with its options, each from its `[MASK]` to the next, in another order (what stands at each place)."""
    begin, end = row.markers[0], len(row.ids) - 1 - row.state_tokens - 1  # before "[SEP] state [SEP]"
    bounds = [*row.markers, end]
    spans = [row.ids[bounds[i] : bounds[i + 1]] for i in order]
    markers, at = [], begin
    for span in spans:
        markers.append(at)
        at += len(span)
    return replace(
        row, ids=[*row.ids[:begin], *(token for span in spans for token in span), *row.ids[end:]], markers=markers
    )


def make_examples(
    layout: Layout,
    states: Sequence[str],
    traces: Sequence[Trace],
    weights: Sequence[float],
    questions: Mapping[str, Question],
) -> RowExamples[Row]:
    """One row per trace and question that its label answers; a state that is too long is cut, never left out."""
    examples = []
    for trace, weight, state in zip(traces, weights, states, strict=True):
        if trace.label is None:
            raise ValueError("a training trace has no label")
        for (name, question), row in zip(questions.items(), layout.rows(state, questions), strict=True):
            target = label_index(name, question, trace.label, trace.failure_type)
            if target is not None:
                about = About(trace.trace_id, name, option_names(question)[target])
                examples.append(Example(row, target, weight, about))
    return RowExamples(examples, row_form(layout.pad_id))


class EncodedExamples:
    """Rows with the frozen encoder's output in place of their tokens, kept as float16.

    The outputs are computed once: with `shuffle` the options of choice questions come in one order per row, drawn at
    random, in every epoch.
    """

    def __init__(
        self,
        encoder: nn.Module,
        examples: RowExamples[Row],
        tokens_per_batch: int,
        done: Progress,
        shuffle: OptionShuffle | None = None,
    ) -> None:
        self._examples, self._shuffle = examples, shuffle
        self.lengths = examples.lengths
        self._hidden: dict[int, Tensor] = {}
        encoder.eval()
        with torch.inference_mode():
            for rows in by_length(self.lengths, tokens_per_batch):
                batch = examples.batch(rows, shuffle)
                device = next(encoder.parameters()).device
                inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
                hidden = encoder(**inputs).last_hidden_state.cpu()
                for row, states in zip(rows, hidden, strict=True):
                    self._hidden[row] = states[: self.lengths[row]].half()
                done("reading the rows once", len(self._hidden) / len(self.lengths))

    def batch(self, rows: Sequence[int], shuffle: OptionShuffle | None = None) -> Batch:  # noqa: ARG002  # see the class
        """As `RowExamples.batch`, with `hidden` float32 (rows, tokens, width) for `input_ids`."""
        batch = self._examples.batch(rows, self._shuffle)
        del batch["input_ids"]
        batch["hidden"] = nn.utils.rnn.pad_sequence([self._hidden[row] for row in rows], batch_first=True).float()
        return batch

    def about(self, row: int) -> Sequence[About]:
        return self._examples.about(row)


def logits(model: nn.Module, batch: Batch) -> Tensor:
    """The model's logits of a batch (`loop.Logits`); from `hidden` when the batch has it."""
    inputs = inputs_of(batch)
    return model.decide(**inputs) if "hidden" in inputs else model(**inputs)  # pyright: ignore[reportCallIssue]


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
    train: RowExamples[Row],
    validation: RowExamples[Row],
    options: LayaTraining,
    *,
    session: Session,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train the head alone on the outputs of the frozen encoder, at most `HEAD_ROWS` rows.

    Raises:
        TrainingFailedError: it diverged or collapsed.
    """

    def to_head(name: str, value: float, step: int) -> None:
        on_metric(f"head/{name}", value, step)

    stage = session.stage("head", "training the head", "--head-lr")
    model.encoder.requires_grad_(False)
    if (before := finished(model, stage, to_head)) is not None:
        return before
    loop = options.loop
    tokens = HEAD_BATCH * loop.tokens_per_batch
    some = np.random.default_rng(loop.seed).permutation(len(train.lengths))[:HEAD_ROWS].tolist()
    shuffle = OptionShuffle(loop.seed, 0) if loop.permute_options else None
    encoded = EncodedExamples(model.encoder, train.subset(some), tokens, part(progress, 0.0, 0.6), shuffle)
    held_out = EncodedExamples(model.encoder, validation, tokens, part(progress, 0.6, 0.7))
    return fit(
        model,
        parameter_groups(model, 0.0, options.head_learning_rate, options.weight_decay)[1:],
        encoded,
        held_out,
        logits=logits,
        options=replace(loop, epochs=options.head_epochs, tokens_per_batch=tokens, gradient_checkpointing=False),
        stage=stage,
        progress=part(progress, 0.7, 1.0),
        on_metric=to_head,
    )


def train_laya(
    model: DecisionModel,
    train: RowExamples[Row],
    validation: RowExamples[Row],
    options: LayaTraining,
    *,
    session: Session | None = None,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train in place; the model ends with LoRA merged and its weights rounded to what a checkpoint holds.

    Raises:
        TrainingFailedError: it diverged or collapsed.
    """
    session = session or Session()
    switch_off_dropout(model)
    lora_progress = progress
    if options.head_epochs:
        head_progress = part(progress, 0.0, 0.3)
        train_head(model, train, validation, options, session=session, progress=head_progress, on_metric=on_metric)
        lora_progress = part(progress, 0.3, 1.0)
    model.encoder = add_lora(model.encoder, options.lora)
    fitted = fit(
        model,
        parameter_groups(model, options.learning_rate, options.learning_rate, options.weight_decay),
        train,
        validation,
        logits=logits,
        options=options.loop,
        stage=session.stage("lora", "training"),
        progress=lora_progress,
        on_metric=on_metric,
    )
    model.encoder = merge_lora(model.encoder)
    round_to_half(model)
    model.eval()
    return fitted
