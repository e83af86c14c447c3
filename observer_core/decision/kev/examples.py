"""Training rows of a Kev model: states with their questions, as tensors that share what can be shared.

Where the backbone is attention only, all questions about a trace share a row, and so the cost of its state: the mask
lets a branch see the state and itself, and its positions go on where the state ends. Recurrent layers cannot leave a
branch out, so on hybrids each question is a row of its own. The answers are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from observer_core.decision.kev.layout import Branch, Layout
from observer_core.decision.training.data import About
from observer_core.decision.training.examples import Batch, OptionShuffle
from observer_core.questions import Question, label_index, option_names
from observer_core.traces.trace import Trace


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

    def subset(self, rows: Sequence[int]) -> "KevExamples":
        """Some of the rows, in that order."""
        return KevExamples([self.rows[row] for row in rows])

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


def logits(network: nn.Module, batch: Batch) -> Tensor:
    """The logits of a batch's questions, float32 (questions, options); from what the backbone said if it is there."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("target", "weight")}
    out = network.point(**inputs) if "at_decide" in inputs else network(**inputs)  # pyright: ignore[reportCallIssue]
    return out[batch["option_mask"].any(-1)]
