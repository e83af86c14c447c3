"""Trains a Kev model on labeled traces: soft cross-entropy over all questions, in two stages.

As with Laya a new head first learns on the frozen backbone, whose outputs at the options and at `<decide>` are computed
once and kept; then LoRA and head go on together, gently (A. Kumar et al. 2022, arXiv 2202.10054).

Where the backbone is attention only, all questions about a trace share a row, and so the cost of its state: the mask
lets a branch see the state and itself, and its positions go on where the state ends. Recurrent layers cannot leave a
branch out, so on hybrids each question is a row of its own. The answers are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from observer_core.decision.kev.adapter import fresh_adapter
from observer_core.decision.kev.layout import Branch, Layout
from observer_core.decision.kev.model import KevNetwork
from observer_core.decision.training.data import About
from observer_core.decision.training.examples import Batch, OptionShuffle, by_length
from observer_core.decision.training.loop import Fitted, LoopOptions, finished, fit
from observer_core.decision.training.progress import MetricSink, Progress, part
from observer_core.decision.training.session import Session
from observer_core.questions import Question, label_index, option_names
from observer_core.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class KevTraining:
    """Settings of a Kev training.

    Args:
        learning_rate: of LoRA and head together.
        lora_rank: of new LoRA, `None` when the network has one to go on with.
        head_learning_rate: of the head alone, before.
        head_epochs: passes of the head alone; 0 for a head that has learnt already.
        loop: of LoRA and head together.
    """

    learning_rate: float
    lora_rank: int | None
    head_learning_rate: float
    head_epochs: float
    loop: LoopOptions
    weight_decay: float = 0.01


@dataclass(frozen=True, slots=True)
class Asked:
    """One question about a state, the option its label names, and what telemetry says of it."""

    branch: Branch
    target: int
    about: About


@dataclass(frozen=True, slots=True)
class Row:
    """A state, the questions asked about it in one row, and what the row counts for."""

    state: tuple[int, ...]
    asked: list[Asked]
    weight: float

    @property
    def tokens(self) -> int:
        return len(self.state) + sum(len(each.branch.ids) for each in self.asked)


def make_rows(
    layout: Layout,
    states: Sequence[str],
    traces: Sequence[Trace],
    weights: Sequence[float],
    questions: Mapping[str, Question],
    *,
    together: bool,
) -> list[Row]:
    """The rows of some labeled traces; a state that is too long is cut, never left out.

    Args:
        together: all questions about a trace in one row, or each in its own.
    """
    branches = {name: layout.branch(name, question) for name, question in questions.items()}
    rows = []
    for trace, weight, text in zip(traces, weights, states, strict=True):
        if trace.label is None:
            raise ValueError("a training trace has no label")
        state, asked = layout.state(text).ids, []
        for name, question in questions.items():
            target = label_index(name, question, trace.label, trace.failure_type)
            if target is not None:
                about = About(trace.trace_id, name, option_names(question)[target])
                asked.append(Asked(branches[name], target, about))
        rows += [Row(state, asked, weight)] if together else [Row(state, [each], weight) for each in asked]
    return rows


def collate(rows: Sequence[tuple[Sequence[int], Sequence[Branch]]]) -> dict[str, NDArray[Any]]:
    """The network's inputs for some states with their branches, padded to the longest (`KevNetwork.forward`).

    Without `position_ids` and `attention_mask` when every row holds one branch. `option_mask` is false throughout for
    the questions that pad a row.
    """
    shape = len(rows), max(len(branches) for _, branches in rows)
    most = max(len(branch.options) for _, branches in rows for branch in branches)
    length = max(len(state) + sum(len(branch.ids) for branch in branches) for state, branches in rows)
    batch: dict[str, NDArray[Any]] = {
        "input_ids": np.zeros((len(rows), length), dtype=np.int64),
        "option_pos": np.zeros((*shape, most), dtype=np.int64),
        "option_mask": np.zeros((*shape, most), dtype=np.bool_),
        "decide_pos": np.zeros(shape, dtype=np.int64),
    }
    positions = np.zeros((len(rows), length), dtype=np.int64)
    part_of = np.full((len(rows), length), -1, dtype=np.int64)  # 0 the state, then the number of the branch
    for i, (state, branches) in enumerate(rows):
        at = len(state)
        batch["input_ids"][i, :at], positions[i, :at], part_of[i, :at] = state, np.arange(at), 0
        for number, branch in enumerate(branches):
            ids, ends, options = branch.ids, branch.ends, len(branch.options)
            here = slice(at, at + len(ids))
            batch["input_ids"][i, here], part_of[i, here] = ids, number + 1
            positions[i, here] = np.arange(len(state), len(state) + len(ids))
            batch["option_pos"][i, number, :options] = [at + end for end in ends]
            batch["option_mask"][i, number, :options] = True
            at += len(ids)
            batch["decide_pos"][i, number] = at - 1
    if shape[1] == 1:
        return batch
    same = (part_of[:, None, :] == part_of[:, :, None]) | (part_of[:, None, :] == 0)
    mask = same & np.tri(length, dtype=np.bool_)
    return batch | {"position_ids": positions, "attention_mask": mask[:, None]}


class KevExamples:
    """`Examples` over rows; each question of a row has its own line in `target` and `weight`."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.lengths = [row.tokens for row in rows]

    def batch(self, rows: Sequence[int], shuffle: OptionShuffle | None = None) -> Batch:
        """The inputs of `collate`, `target` float32 (questions, options) and `weight` float32 (questions,)."""
        chosen = [self.shuffled(row, shuffle) for row in rows]
        arrays = collate([(row.state, [each.branch for each in row.asked]) for row in chosen])
        return {name: torch.from_numpy(a) for name, a in (arrays | targets(chosen)).items()}

    def about(self, row: int) -> list[About]:
        return [each.about for each in self.rows[row].asked]

    def shuffled(self, row: int, shuffle: OptionShuffle | None) -> Row:
        """The row, with `shuffle` the options of its choice questions in another order."""
        chosen = self.rows[row]
        if shuffle is None or not any(each.branch.is_choice for each in chosen.asked):
            return chosen
        asked = []
        for each in chosen.asked:
            if each.branch.is_choice:
                order = shuffle.order(row, len(each.branch.options))
                each = replace(each, branch=each.branch.permuted(order), target=order.index(each.target))
            asked.append(each)
        return replace(chosen, asked=asked)


def targets(rows: Sequence[Row]) -> dict[str, NDArray[np.float32]]:
    """`target` and `weight` of all questions of some rows."""
    asked = [each for row in rows for each in row.asked]
    target = np.zeros((len(asked), max(len(each.branch.options) for each in asked)), dtype=np.float32)
    target[np.arange(len(asked)), [each.target for each in asked]] = 1.0
    weight = np.array([row.weight for row in rows for _ in row.asked], dtype=np.float32)
    return {"target": target, "weight": weight}


class ReadExamples:
    """Rows with what the frozen backbone says at their options and decisions in place of their tokens.

    It is computed once: with `shuffle` the options of choice questions come in one order per row in every epoch.
    """

    def __init__(
        self,
        network: KevNetwork,
        examples: KevExamples,
        tokens_per_batch: int,
        done: Progress,
        shuffle: OptionShuffle | None = None,
    ) -> None:
        self._rows = [examples.shuffled(row, shuffle) for row in range(len(examples.lengths))]
        self._examples, self.lengths = examples, examples.lengths
        self._read: dict[int, tuple[Tensor, Tensor]] = {}
        device = next(network.parameters()).device
        network.eval()
        with torch.inference_mode():
            for rows in by_length(self.lengths, tokens_per_batch):
                batch = {name: tensor.to(device) for name, tensor in examples.batch(rows, shuffle).items()}
                inputs = {name: batch[name] for name in batch if name not in ("target", "weight", "option_mask")}
                decide, options = (each.cpu() for each in network.read(**inputs))
                for i, row in enumerate(rows):
                    self._read[row] = decide[i], options[i]
                done("reading the traces once", len(self._read) / len(self.lengths))

    def batch(self, rows: Sequence[int], shuffle: OptionShuffle | None = None) -> Batch:  # noqa: ARG002  # see the class
        """`at_decide`, `at_options` and `option_mask` as for `KevNetwork.point`, with `target` and `weight`."""
        chosen = [self._rows[row] for row in rows]
        width, most = max(len(row.asked) for row in chosen), max(len(e.branch.options) for r in chosen for e in r.asked)
        dim = self._read[rows[0]][0].size(-1)
        decide, options = torch.zeros(len(rows), width, dim), torch.zeros(len(rows), width, most, dim)
        mask = torch.zeros(len(rows), width, most, dtype=torch.bool)
        for i, (number, row) in enumerate(zip(rows, chosen, strict=True)):
            for j, each in enumerate(row.asked):
                count = len(each.branch.options)
                decide[i, j], options[i, j, :count] = self._read[number][0][j], self._read[number][1][j, :count]
                mask[i, j, :count] = True
        batch = {"at_decide": decide, "at_options": options, "option_mask": mask}
        return batch | {name: torch.from_numpy(array) for name, array in targets(chosen).items()}

    def about(self, row: int) -> list[About]:
        return self._examples.about(row)


def logits(network: nn.Module, batch: Batch) -> Tensor:
    """The logits of a batch's questions, float32 (questions, options); from what the backbone said if it is there."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("target", "weight")}
    out = network.point(**inputs) if "at_decide" in inputs else network(**inputs)  # pyright: ignore[reportCallIssue]
    return out[batch["option_mask"].any(-1)]


def parameter_groups(network: KevNetwork, backbone: float, head: float, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's groups: LoRA at one rate, the head at another."""
    lora = [parameter for parameter in network.backbone.parameters() if parameter.requires_grad]
    return [
        {"params": lora, "lr": backbone, "weight_decay": weight_decay},
        {"params": list(network.head.parameters()), "lr": head, "weight_decay": weight_decay},
    ]


def train_head(
    network: KevNetwork,
    train: KevExamples,
    validation: KevExamples,
    options: KevTraining,
    *,
    session: Session,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train the head alone on the outputs of the frozen backbone.

    Raises:
        TrainingFailedError: it diverged or collapsed.
    """

    def to_head(name: str, value: float, step: int) -> None:
        on_metric(f"head/{name}", value, step)

    stage = session.stage("head", "training the head", "--head-lr")
    network.backbone.requires_grad_(False)
    if (before := finished(network, stage, to_head)) is not None:
        return before
    loop = options.loop
    shuffle = OptionShuffle(loop.seed, 0) if loop.permute_options else None
    read = ReadExamples(network, train, loop.tokens_per_batch, part(progress, 0.0, 0.8), shuffle)
    held_out = ReadExamples(network, validation, loop.tokens_per_batch, part(progress, 0.8, 0.95))
    return fit(
        network,
        parameter_groups(network, 0.0, options.head_learning_rate, options.weight_decay)[1:],
        read,
        held_out,
        logits=logits,
        options=replace(loop, epochs=options.head_epochs, gradient_checkpointing=False),
        stage=stage,
        progress=part(progress, 0.95, 1.0),
        on_metric=to_head,
    )


def train_kev(
    network: KevNetwork,
    train: KevExamples,
    validation: KevExamples,
    options: KevTraining,
    *,
    session: Session,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train in place; LoRA is not merged.

    Raises:
        TrainingFailedError: it diverged or collapsed.
    """
    home = next(network.parameters()).device
    network.to(Accelerator(mixed_precision="no").device)  # the outputs of the frozen backbone too are computed there
    lora_progress = progress
    if options.head_epochs:
        lora_progress = part(progress, 0.3, 1.0)
        early = part(progress, 0.0, 0.3)
        train_head(network, train, validation, options, session=session, progress=early, on_metric=on_metric)
    if options.lora_rank is not None:
        network.backbone = fresh_adapter(network.backbone, rank=options.lora_rank)
    fitted = fit(
        network,
        parameter_groups(network, options.learning_rate, options.learning_rate, options.weight_decay),
        train,
        validation,
        logits=logits,
        options=options.loop,
        stage=session.stage("lora", "training"),
        progress=lora_progress,
        on_metric=on_metric,
    )
    network.to(home).eval()
    return fitted
