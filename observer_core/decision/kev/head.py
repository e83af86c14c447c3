"""The first stage of training a Kev model: its new head alone, on what the frozen backbone says.

The backbone's outputs at the options and at `<decide>` are computed once and kept. They differ little from each other
around a large common vector, so that Adam, which steps equally far along every axis, would mostly fit that vector. The
head therefore learns on standardised outputs, and the shift and the scale are then folded into its weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from observer_core.decision.kev.examples import KevExamples, logits, targets
from observer_core.decision.kev.model import KevNetwork
from observer_core.decision.training.data import About
from observer_core.decision.training.examples import Batch, OptionShuffle, by_length
from observer_core.decision.training.loop import Fitted, LoopOptions, finished, fit
from observer_core.decision.training.progress import MetricSink, Progress, part
from observer_core.decision.training.session import Session

HEAD_ROWS = 8192
"""The head alone learns on at most this many rows: what the backbone says of them is held in memory."""
MIN_SCALE = 0.1
"""Axes along which outputs differ less than this share of the mean axis are scaled as if they differed so much."""


class ReadExamples:
    """Rows with what the frozen backbone says at their options and decisions in place of their tokens.

    Args:
        examples: the rows.
        shuffle: the order of choice questions' options in which the backbone read them, the same in every epoch.
        at_decide: for each row, float32 (questions, width).
        at_options: for each row, float32 (questions, options, width), padded.
    """

    def __init__(
        self,
        examples: KevExamples,
        shuffle: OptionShuffle | None,
        at_decide: Sequence[Tensor],
        at_options: Sequence[Tensor],
    ) -> None:
        self._rows = [examples.shuffled(row, shuffle) for row in range(len(examples.lengths))]
        self._examples, self.lengths = examples, examples.lengths
        self._decide, self._options = at_decide, at_options

    def batch(self, rows: Sequence[int], shuffle: OptionShuffle | None = None) -> Batch:  # noqa: ARG002  # see the class
        """`at_decide`, `at_options` and `option_mask` as for `KevNetwork.point`, with `target` and `weight`."""
        chosen = [self._rows[row] for row in rows]
        width, most = max(len(row.asked) for row in chosen), max(len(e.branch.options) for r in chosen for e in r.asked)
        dim = self._decide[rows[0]].size(-1)
        decide, options = torch.zeros(len(rows), width, dim), torch.zeros(len(rows), width, most, dim)
        mask = torch.zeros(len(rows), width, most, dtype=torch.bool)
        for i, (number, row) in enumerate(zip(rows, chosen, strict=True)):
            for j, each in enumerate(row.asked):
                count = len(each.branch.options)
                decide[i, j], options[i, j, :count] = self._decide[number][j], self._options[number][j, :count]
                mask[i, j, :count] = True
        batch = {"at_decide": decide, "at_options": options, "option_mask": mask}
        return batch | {name: torch.from_numpy(array) for name, array in targets(chosen).items()}

    def about(self, row: int) -> list[About]:
        return self._examples.about(row)

    def vectors(self) -> tuple[Tensor, Tensor]:
        """All outputs at decisions and at options, each float32 (…, width)."""
        decide, options = [], []
        for i, row in enumerate(self._rows):
            for j, each in enumerate(row.asked):
                decide.append(self._decide[i][j])
                options += [*self._options[i][j, : len(each.branch.options)]]
        return torch.stack(decide), torch.stack(options)

    def scaled(self, decide: "Standard", options: "Standard") -> "ReadExamples":
        """The same rows with standardised outputs."""
        made = ReadExamples(
            self._examples, None, [decide(t) for t in self._decide], [options(t) for t in self._options]
        )
        made._rows = self._rows
        return made


class Standard:
    """Shifts and scales vectors to mean 0 and standard deviation 1 along each axis."""

    def __init__(self, vectors: Tensor) -> None:
        scale = vectors.std(0)
        self.mean, self.scale = vectors.mean(0), scale.clamp(min=MIN_SCALE * float(scale.mean()))

    def __call__(self, vectors: Tensor) -> Tensor:
        return (vectors - self.mean) / self.scale

    def fold(self, layer: nn.Linear) -> None:
        """Change a layer that takes standardised vectors so that it gives the same for plain ones."""
        with torch.no_grad():
            layer.weight.div_(self.scale.to(layer.weight.device))
            layer.bias.sub_(layer.weight @ self.mean.to(layer.weight.device))


def read_once(
    network: KevNetwork, examples: KevExamples, loop: LoopOptions, shuffle: OptionShuffle | None, done: Progress
) -> dict[str, list[Tensor]]:
    """What the backbone says of every row: `decide` and `options` as of `ReadExamples`."""
    count = len(examples.lengths)
    empty = torch.empty(0)
    decide, options, ready = [empty] * count, [empty] * count, 0
    device = next(network.parameters()).device
    network.eval()
    with torch.inference_mode():
        for rows in by_length(examples.lengths, loop.tokens_per_batch):
            batch = {name: tensor.to(device) for name, tensor in examples.batch(rows, shuffle).items()}
            inputs = {name: batch[name] for name in batch if name not in ("target", "weight", "option_mask")}
            for row, *found in zip(rows, *(each.cpu() for each in network.read(**inputs)), strict=True):
                decide[row], options[row] = (each.clone() for each in found)
            ready += len(rows)
            done("reading the traces once", ready / count)
    return {"decide": decide, "options": options}


def train_head(
    network: KevNetwork,
    groups: Sequence[dict[str, Any]],
    train: KevExamples,
    validation: KevExamples,
    loop: LoopOptions,
    *,
    session: Session,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train the head alone on the outputs of the frozen backbone, at most `HEAD_ROWS` rows.

    Args:
        groups: the head's parameters and their learning rate, for AdamW.
        loop: of the head alone.

    Raises:
        TrainingFailedError: it diverged or collapsed.
    """

    def to_head(name: str, value: float, step: int) -> None:
        on_metric(f"head/{name}", value, step)

    network.backbone.requires_grad_(False)
    some = np.random.default_rng(loop.seed).permutation(len(train.lengths))[:HEAD_ROWS].tolist()
    shuffle = OptionShuffle(loop.seed, 0) if loop.permute_options else None
    train = train.subset(some)
    kept = session.stage("read", "reading the traces once").checkpoint()
    said = kept.load() if kept else None
    if said is None:
        said = {
            "train": read_once(network, train, loop, shuffle, part(progress, 0.0, 0.8)),
            "validation": read_once(network, validation, loop, None, part(progress, 0.8, 0.95)),
        }
        if kept is not None:
            kept.save(said)
    plain = ReadExamples(train, shuffle, said["train"]["decide"], said["train"]["options"])
    held_out = ReadExamples(validation, None, said["validation"]["decide"], said["validation"]["options"])
    decide, options = (Standard(vectors) for vectors in plain.vectors())
    stage = session.stage("head", "training the head", "--head-lr")
    fitted = finished(network, stage, to_head)
    if fitted is None:
        fitted = fit(
            network,
            groups,
            plain.scaled(decide, options),
            held_out.scaled(decide, options),
            logits=logits,
            options=replace(loop, gradient_checkpointing=False),
            stage=stage,
            progress=part(progress, 0.95, 1.0),
            on_metric=to_head,
        )
    decide.fold(network.head.q)
    options.fold(network.head.k)
    return fitted
