"""Slips with everything at hand: `arithmetic_slip`, `date_slip`, and `unsupported_claim` against right evidence."""

import random

from observer_pipeline.agent.faults.behaviour import AnswersInstead
from observer_pipeline.agent.faults.injection import Injection
from observer_pipeline.agent.faults.values import (
    compared_kind,
    kind_of,
    other_side,
    slip_of_date,
    slip_of_number,
    wrong_value,
)
from observer_pipeline.agent.questions import AgentQuestion


def arithmetic_slip(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """A number is miscalculated or misread, or two numbers are compared the wrong way round."""
    instead = None
    if kind_of(question.answer) == "number":
        instead = slip_of_number(question.answer, rng)
    elif compared_kind(question) == "number":
        instead = other_side(question)
    return _instead("arithmetic_slip", question, instead)


def date_slip(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """A date or year is slightly off, or two are compared the wrong way round."""
    instead = None
    if kind_of(question.answer) in ("date", "year"):
        instead = slip_of_date(question.answer, rng)
    elif compared_kind(question) in ("date", "year"):
        instead = other_side(question)
    return _instead("date_slip", question, instead)


def unsupported_claim(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """The evidence is right and complete; the answer says something else."""
    return _instead("unsupported_claim", question, wrong_value(question, rng))


def _instead(kind: str, question: AgentQuestion, instead: str | None) -> Injection | None:
    if instead is None or instead == question.answer:
        return None
    return Injection(kind, {"answered": instead, "true": question.answer}, model=AnswersInstead(instead))
