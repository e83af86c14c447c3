"""Asking a decision model in one line."""

from collections.abc import Mapping, Sequence
from typing import Any

from observer_core.decision.protocol import Answer, DecisionModel, read
from observer_core.questions import Question


def answers(model: DecisionModel, states: Sequence[Any], questions: Mapping[str, Question]) -> list[dict[str, Answer]]:
    """One dict (question id → answer) per state."""
    return [reading.answers for reading in read(model, states, questions)]
