"""Typed questions to a decision model, in the wire form of System One (`type`, `instructions`, `criteria`)."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from observer_core.errors import InputError

DECISION_QUESTION = "answer_wrong"
"""The question that decides when a manifest does not name one."""


class Question(BaseModel):
    """A typed question: `noul` (yes/no probability), `choice` (named options) or `score` (ordered levels).

    `criteria` is, by type: `{"true"?: text, "false"?: text}` or null; a map option → description or null; a list of
    levels.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["noul", "choice", "score"]
    instructions: Any = None
    criteria: Any = None


def default_questions() -> dict[str, Question]:
    """The questions of a new run, in the order they are sent: the one that decides, then the graded one."""
    return {
        DECISION_QUESTION: Question(
            type="noul",
            instructions="Is the final answer wrong or only partially correct for the user's question?",
        ),
        "answers_question": Question(
            type="score",
            instructions="How completely and correctly does the final answer address the user's question?",
            criteria=["Wrong", "Partially correct", "Fully correct"],
        ),
    }


def option_names(question: Question) -> list[str]:
    """The keys of the answer's distribution, in the order of the options.

    Raises:
        InputError: a choice or score without usable criteria.
    """
    if question.type == "noul":
        return ["false", "true"]
    if question.type == "choice" and isinstance(question.criteria, Mapping) and question.criteria:
        return [str(name) for name in question.criteria]
    if question.type == "score" and isinstance(question.criteria, list) and question.criteria:
        return [str(level) for level in range(len(question.criteria))]
    raise InputError(
        f"a {question.type} question needs criteria: a map of options (choice) or a list of levels (score)"
    )


def label_index(question_id: str, label: str) -> int | None:
    """The option index a gold label means for one of the default questions; `None` for a question labels cannot answer.

    A noul's options are [false, true]; a score's are its levels.
    """
    if question_id == DECISION_QUESTION:
        return int(label != "correct")
    if question_id == "answers_question":
        return {"wrong": 0, "partial": 1, "correct": 2}[label]
    return None
