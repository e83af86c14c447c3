"""Typed questions to a decision model, in the wire form of System One (`type`, `instructions`, `criteria`)."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from observer_core.errors import InputError

DECISION_QUESTION = "answer_wrong"
"""The question that decides when a manifest does not name one."""

FAILURE_QUESTION = "failure"
NO_FAILURE = "none"


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


def failure_question(kinds: Iterable[str]) -> Question:
    """The optional question which seeded fault a trace has, a choice among `kinds` and none."""
    return Question(
        type="choice",
        instructions="What went wrong in this run of the agent?",
        criteria={NO_FAILURE: "nothing went wrong", **{kind: kind.replace("_", " ") for kind in kinds}},
    )


def label_index(question_id: str, question: Question, label: str, failure_type: str | None = None) -> int | None:
    """The number of the option that a labeled trace means for a question; `None` if it does not answer the question.

    A noul's options are [false, true]; a score's are its levels. `failure` is answered by the fault that was seeded,
    and by none for a correct answer of a natural run; why a natural run went wrong nobody has said.
    """
    if question_id == DECISION_QUESTION:
        return int(label != "correct")
    if question_id == "answers_question":
        return {"wrong": 0, "partial": 1, "correct": 2}[label]
    if question_id == FAILURE_QUESTION:
        kind = failure_type or (NO_FAILURE if label == "correct" else None)
        names = option_names(question)
        return names.index(kind) if kind in names else None
    return None
