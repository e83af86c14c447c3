"""Labeled traces made ready for training: divided by user question, checked, weighted, fingerprinted."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from observer_core.errors import InputError
from observer_core.traces.splits import split_of
from observer_core.traces.trace import Split, Trace

MIN_PER_CLASS: Mapping[Split, int] = {"train": 10, "validation": 2, "calibration": 5, "test": 2}
"""Traces of each class a split must have; with fewer, what is made from it would be an accident."""

MAX_WEIGHT = 20.0
"""Weights above this multiple of their mean are cut to it: a rare trace must not outvote all others."""


@dataclass(frozen=True, slots=True)
class About:
    """What a training row is about: whose trace, which question, and the option its label names."""

    trace_id: str | None
    question: str
    label: str


@dataclass(frozen=True, slots=True)
class Part:
    """The labeled traces of one split. `wrong` bool and `weight` float64 (mean 1 before the cut), shape (traces,)."""

    traces: list[Trace]
    wrong: NDArray[np.bool_]
    weight: NDArray[np.float64]


def split_traces(traces: Sequence[Trace], *, weights: bool) -> dict[Split, Part]:
    """Divide labeled traces into the four splits; traces without a label are left out.

    Args:
        weights: weigh by 1 / (keep probability × review probability) instead of equally.

    Raises:
        InputError: no labels at all, or a split has too few traces of a class; says how many there are.
    """
    labeled = [trace for trace in traces if trace.label is not None]
    if not labeled:
        raise InputError(
            f"none of the {len(traces)} traces has a label; give traces with 'label': wrong, partial or correct"
        )
    by_split: dict[Split, list[Trace]] = {split: [] for split in get_args(Split)}
    for trace in labeled:
        by_split[split_of(trace)].append(trace)
    parts: dict[Split, Part] = {split: _part(members, weights=weights) for split, members in by_split.items()}
    for split, part in parts.items():
        wrong = int(part.wrong.sum())
        correct = len(part.traces) - wrong
        if min(wrong, correct) < MIN_PER_CLASS[split]:
            raise InputError(
                f"split '{split}' has {wrong} wrong and {correct} correct traces, and needs {MIN_PER_CLASS[split]} of "
                f"each ({len(labeled)} labeled traces in all); give more labeled traces of more user questions"
            )
    return parts


def _part(traces: list[Trace], *, weights: bool) -> Part:
    weight = np.array([trace.weight if weights else 1.0 for trace in traces], dtype=np.float64)
    if len(traces):
        weight = np.minimum(weight / weight.mean(), MAX_WEIGHT)
    return Part(traces, np.array([trace.is_wrong for trace in traces], dtype=np.bool_), weight)


def data_sha(traces: Sequence[Trace]) -> str:
    """The sha256 of the traces' JSON lines, whatever their order."""
    lines = sorted(json.dumps(trace.to_json(), sort_keys=True, ensure_ascii=False) for trace in traces)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
