"""Labeled traces made ready for training: divided by user question, checked, weighted, fingerprinted."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from observer_core.errors import InputError
from observer_core.questions import FAILURE_QUESTION, Question, default_questions, failure_question
from observer_core.traces.splits import normalise_question, split_of
from observer_core.traces.trace import Split, Trace

MIN_PER_CLASS: Mapping[Split, int] = {"train": 10, "validation": 2, "calibration": 5, "test": 2}
"""Traces of each class a split must have; with fewer, what is made from it would be an accident."""

MAX_WEIGHT = 20.0
"""Weights above this multiple of their mean are cut to it: a rare trace must not outvote all others."""


MIN_PER_FAULT = 5
"""Training traces a seeded fault must have to become an option of the question `failure`."""


@dataclass(frozen=True, slots=True)
class About:
    """What a training row is about: whose trace, which question, and the option its label names."""

    trace_id: str | None
    question: str
    label: str


@dataclass(frozen=True, slots=True)
class Part:
    """The labeled traces of one split.

    Args:
        wrong: bool (traces,).
        weight: float64 (traces,), mean 1 before the cut.
        cut: how many weights were cut to the limit.
        limit: the largest 1 / selection probability that counts in full.
    """

    traces: list[Trace]
    wrong: NDArray[np.bool_]
    weight: NDArray[np.float64]
    cut: int = 0
    limit: float = math.inf

    @property
    def effective_n(self) -> float:
        """How many equally weighted traces tell as much: (Σw)² / Σw² (L. Kish 1965, "Survey Sampling")."""
        return float(self.weight.sum() ** 2 / (self.weight**2).sum())

    def weights_note(self) -> str:
        """What the weights came to, in a sentence."""
        n = len(self.traces)
        worth = f"{n:,} traces are worth {self.effective_n:,.0f} of equal weight"
        if not self.cut:
            return f"{worth}; none was cut"
        return (
            f"{worth}; {self.cut:,} were cut to 1 / selection probability = {self.limit:,.4g}, "
            f"{MAX_WEIGHT:g} times the mean"
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """Earlier labeled traces that are trained on again, so that a delta does not make the model forget.

    Args:
        traces: those drawn; all of split `train`.
        usable: how many there were to draw from.
        left_out: labeled traces of another split, of a question that is held out in the new data, or in it already.
    """

    traces: list[Trace]
    usable: int
    left_out: int

    def note(self, new: int) -> str:
        """What was mixed into `new` training traces, in a sentence."""
        n = len(self.traces)
        return (
            f"{n:,} earlier traces beside {new:,} new ones ({n / max(1, n + new):.0%}), drawn from {self.usable:,}; "
            f"{self.left_out:,} were no candidates (held-out question, or among the new ones)"
        )


def draw_replay(
    traces: Sequence[Trace], earlier: Sequence[Trace], *, share: float, rows: int | None, seed: int
) -> Replay:
    """Draw earlier traces to mix into the split `train` of new ones.

    No question leaks: only traces of split `train` are drawn, and none whose question the new data holds out, which
    matters where an explicit `split` differs from the question's own.

    Args:
        share: what the drawn traces are to make up of the mix, 0 to below 1.
        rows: that many instead. With fewer candidates all are taken.

    Raises:
        InputError: none can be used.
    """
    labeled = [trace for trace in traces if trace.label is not None]
    new = [trace for trace in labeled if split_of(trace) == "train"]
    held_out = {normalise_question(trace.question) for trace in labeled if split_of(trace) != "train"}
    known = {_key(trace) for trace in labeled}
    candidates = [
        trace
        for trace in earlier
        if trace.label is not None
        and split_of(trace) == "train"
        and normalise_question(trace.question) not in held_out
        and _key(trace) not in known
    ]
    if not candidates:
        raise InputError(
            f"none of the {len(earlier)} traces to replay can be used: they need a label, a question of split train "
            "that the new data does not hold out, and not to be among the new ones; give other traces or no --replay"
        )
    wanted = rows if rows is not None else round(share / (1 - share) * len(new))
    chosen = np.random.default_rng(seed).permutation(len(candidates))[:wanted]
    return Replay([candidates[i] for i in sorted(chosen.tolist())], len(candidates), len(earlier) - len(candidates))


def _key(trace: Trace) -> str:
    return trace.trace_id or json.dumps(trace.to_json(), sort_keys=True)


def split_traces(traces: Sequence[Trace], *, weights: bool, replay: Sequence[Trace] = ()) -> dict[Split, Part]:
    """Divide labeled traces into the four splits; traces without a label are left out.

    Args:
        weights: weigh by 1 / (keep probability × review probability) instead of equally.
        replay: labeled traces to train on besides (`draw_replay`).

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
    by_split["train"] += replay
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
    wrong = np.array([trace.is_wrong for trace in traces], dtype=np.bool_)
    weight = np.array([trace.weight if weights else 1.0 for trace in traces], dtype=np.float64)
    if not len(traces):
        return Part(traces, wrong, weight)
    mean = weight.mean()
    cut = int((weight / mean > MAX_WEIGHT).sum())
    return Part(traces, wrong, np.minimum(weight / mean, MAX_WEIGHT), cut, float(MAX_WEIGHT * mean))


def questions_to_learn(train: Part, *, failure: bool) -> dict[str, Question]:
    """The questions of a new run; with `failure` also which seeded fault a trace has.

    Raises:
        InputError: `failure` was asked for and no fault was seeded often enough to be learnt.
    """
    questions = default_questions()
    if not failure:
        return questions
    found = Counter(trace.failure_type for trace in train.traces if trace.failure_type is not None)
    kinds = sorted(kind for kind, n in found.items() if n >= MIN_PER_FAULT)
    if not kinds:
        raise InputError(
            f"--failure needs a failure_type with {MIN_PER_FAULT} traces of split train or more (found: "
            f"{dict(found) or 'none'}); give traces with seeded faults or leave it out"
        )
    return {**questions, FAILURE_QUESTION: failure_question(kinds)}


def data_sha(traces: Sequence[Trace], *, in_order: bool = False) -> str:
    """The sha256 of the traces' JSON lines, whatever their order or `in_order`."""
    lines = [json.dumps(trace.to_json(), sort_keys=True, ensure_ascii=False) for trace in traces]
    return hashlib.sha256("\n".join(lines if in_order else sorted(lines)).encode()).hexdigest()
