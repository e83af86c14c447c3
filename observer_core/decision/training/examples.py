"""Training rows of any family: a question about a state, the option its label names, and what the row counts for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from observer_core.decision.training.data import About

Batch = dict[str, Tensor]
"""A family's inputs, with `target` float32 (questions, options), a distribution, and `weight` float32 (questions,);
where a row holds one question, that is rows."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class OptionShuffle:
    """In which order the options of choice questions come during one epoch: drawn anew for each row and epoch.

    The order follows from seed, epoch and row alone, so that a training that was killed and goes on sees the same.
    """

    seed: int
    epoch: int

    def order(self, row: int, options: int) -> list[int]:
        """A permutation: what stands at each place."""
        return np.random.default_rng([self.seed, self.epoch, row]).permutation(options).tolist()


class Examples(Protocol):
    """Training rows: their lengths in tokens, any of them as padded tensors, and what each is about."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def batch(self, rows: Sequence[int], shuffle: OptionShuffle | None = None) -> Batch:
        """The rows padded together; with `shuffle` the options of choice questions, and their targets, change places.

        The options of a noul (false, true) and of a score (its levels) have an order that means something: they stay.
        """
        ...

    def about(self, row: int) -> Sequence[About]:
        """One for each line the row has in `target`: a row of several questions has several."""
        ...


@dataclass(frozen=True, slots=True)
class RowForm(Generic[Row]):
    """What a family's rows look like.

    Args:
        length: tokens of a row.
        options: how many options it has.
        is_choice: whether its options' order is free.
        permute: the row with its options in another order (what stands at each place).
        collate: the model's inputs for some rows, padded to the longest.
    """

    length: Callable[[Row], int]
    options: Callable[[Row], int]
    is_choice: Callable[[Row], bool]
    permute: Callable[[Row, Sequence[int]], Row]
    collate: Callable[[Sequence[Row]], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Example(Generic[Row]):
    """A row, the number of the option that is right, what the row counts for in the loss, and what it is about."""

    row: Row
    target: int
    weight: float
    about: About


class RowExamples(Generic[Row]):
    """`Examples` over a family's rows."""

    def __init__(self, examples: Sequence[Example[Row]], form: RowForm[Row]) -> None:
        self._examples, self._form = examples, form
        self.lengths = [form.length(example.row) for example in examples]

    def subset(self, rows: Sequence[int]) -> "RowExamples[Row]":
        """Some of the rows, in that order."""
        return RowExamples([self._examples[i] for i in rows], self._form)

    def about(self, row: int) -> Sequence[About]:
        return [self._examples[row].about]

    def batch(self, rows: Sequence[int], shuffle: OptionShuffle | None = None) -> Batch:
        """See `Examples.batch`."""
        chosen = [self._example(row, shuffle) for row in rows]
        widest = max(self._form.options(example.row) for example in chosen)
        target = np.zeros((len(rows), widest), dtype=np.float32)
        target[np.arange(len(rows)), [example.target for example in chosen]] = 1.0
        weight = np.array([example.weight for example in chosen], dtype=np.float32)
        inputs = self._form.collate([example.row for example in chosen])
        return {name: torch.from_numpy(a) for name, a in {**inputs, "target": target, "weight": weight}.items()}

    def _example(self, row: int, shuffle: OptionShuffle | None) -> Example[Row]:
        example = self._examples[row]
        if shuffle is None or not self._form.is_choice(example.row):
            return example
        order = shuffle.order(row, self._form.options(example.row))
        return replace(example, row=self._form.permute(example.row, order), target=order.index(example.target))


def inputs_of(batch: Batch) -> Batch:
    """What the model gets of a batch."""
    return {name: tensor for name, tensor in batch.items() if name not in ("target", "weight")}


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
