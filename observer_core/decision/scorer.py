"""Scores traces with a trained run: state, model, calibration. What every family shares."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from observer_core.decision.baseline import BaselineModel
from observer_core.decision.calibration import calibrate
from observer_core.decision.protocol import DecisionModel, Score, read
from observer_core.errors import InputError
from observer_core.rundir import Manifest
from observer_core.slices import StateBuilder
from observer_core.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class RawScore:
    """A score before calibration."""

    p_wrong_raw: float
    truncated: bool = False
    answers: dict[str, Any] = field(default_factory=dict)


class RawScorer(Protocol):
    """Scores traces without calibration."""

    def __call__(self, traces: Sequence[Trace], *, only_deciding: bool = False) -> list[RawScore]:
        """One score per trace, in order.

        Args:
            only_deciding: ask the question that decides alone. Its answer does not depend on the others, the time does.
        """
        ...


def state_scorer(model: DecisionModel, manifest: Manifest, *, tokenizer: Path | None = None) -> RawScorer:
    """Builds each trace's state and asks the manifest's questions.

    Args:
        tokenizer: the folder of the model's tokenizer, for state formats that count tokens.

    Raises:
        InputError: the question that decides is not a noul, or states cannot be built as the manifest says.
    """
    decides = manifest.decision_question
    kind = manifest.questions[decides].type
    if kind != "noul":
        raise InputError(f"decision_question '{decides}' is a {kind}; only a noul can decide")
    builder = StateBuilder(manifest.slice_spec, tokenizer)
    alone = {decides: manifest.questions[decides]}

    def score(traces: Sequence[Trace], *, only_deciding: bool = False) -> list[RawScore]:
        states = [builder.build(trace) for trace in traces]
        readings = read(model, [state.text for state in states], alone if only_deciding else manifest.questions)
        return [
            RawScore(
                p_wrong_raw=reading.answers[decides].noul,
                truncated=state.truncated or reading.truncated,
                answers={name: answer.to_json() for name, answer in reading.answers.items() if name != decides},
            )
            for state, reading in zip(states, readings, strict=True)
        ]

    return score


def deciding(manifest: Manifest) -> Manifest:
    """The manifest with the question that decides alone: its answer does not depend on the others, the time does."""
    name = manifest.decision_question
    return manifest.model_copy(update={"questions": {name: manifest.questions[name]}})


def baseline_scorer(model: BaselineModel) -> RawScorer:
    """Computes the baseline's features; it answers the question that decides and no other."""

    def score(traces: Sequence[Trace], *, only_deciding: bool = False) -> list[RawScore]:  # noqa: ARG001
        return [RawScore(p) for p in model.p_wrong_raw(traces).tolist()]

    return score


class RunScorer:
    """A `Scorer` over a raw scorer and the calibration of a manifest.

    Raises:
        InputError: the calibration cannot be used.
    """

    def __init__(self, manifest: Manifest, model_version: str, raw: RawScorer) -> None:
        self.model, self.model_version = manifest.model, model_version
        self.manifest, self.raw = manifest, raw
        calibrate(np.array([0.5]), manifest)  # what cannot be used is refused here, not at the first trace

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        """One score per trace, in order; a score does not depend on the other traces."""
        if not traces:
            return []
        raw = self.raw(traces)
        calibrated = calibrate(np.array([score.p_wrong_raw for score in raw]), self.manifest)
        return [
            Score(score.p_wrong_raw, p_wrong, score.truncated, score.answers)
            for score, p_wrong in zip(raw, calibrated.tolist(), strict=True)
        ]
