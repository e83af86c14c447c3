"""What is sent to a System One server, and what counts as an answer: a right one or an error, never a wrong number.

Servers round, leave out `confidence` or `legend`, and define confidence differently. None of that is used: an answer is
its probabilities, checked here; everything else is computed from them.
"""

import math
from collections.abc import Mapping
from typing import Any

from observer_core.decision.protocol import Answer
from observer_core.errors import InputError, ObserverError
from observer_core.questions import Question

SUM_TOLERANCE = 0.05
"""How far a distribution's sum may be from 1 whatever its rounding (jevcompat spec 0.1)."""
MIN_DECIMALS = 2
"""Servers print at least two decimals."""
MAX_OPTIONS, MAX_LEVELS = 255, 10


def question_json(question_id: str, question: Question) -> dict[str, Any]:
    """The question as it is sent; absent fields are left out.

    Raises:
        InputError: criteria that the contract does not allow.
    """
    body = {name: value for name, value in question.model_dump().items() if value is not None}
    expected_options(question_id, question)
    return body


def expected_options(question_id: str, question: Question) -> list[str]:
    """The keys the answer's distribution has to have, in order.

    Raises:
        InputError: criteria that the contract does not allow.
    """
    criteria = question.criteria
    if question.type == "noul":
        if criteria is None or (isinstance(criteria, Mapping) and set(criteria) <= {"true", "false"}):
            return ["false", "true"]
        raise InputError(f"question '{question_id}': a noul's criteria are a map with 'true' and 'false', or nothing")
    if question.type == "choice":
        if isinstance(criteria, Mapping) and 1 <= len(criteria) <= MAX_OPTIONS:
            return [str(name) for name in criteria]
        raise InputError(f"question '{question_id}': a choice's criteria are a map of 1 to {MAX_OPTIONS} options")
    if isinstance(criteria, list) and 1 <= len(criteria) <= MAX_LEVELS:
        return [str(level) for level in range(len(criteria))]
    raise InputError(f"question '{question_id}': a score's criteria are a list of 1 to {MAX_LEVELS} levels")


def read_answers(questions: Mapping[str, Question], answers: Mapping[str, Any]) -> dict[str, Answer]:
    """The server's answer objects as `Answer`s, in the order asked; answers nobody asked for are passed over.

    Raises:
        ObserverError: an answer is missing, of another type, or no distribution over the options asked; names it.
    """
    return {name: _answer(name, question, answers.get(name)) for name, question in questions.items()}


def _answer(name: str, question: Question, given: Any) -> Answer:
    if not isinstance(given, Mapping):
        raise ObserverError(f"the server gave no answer to '{name}'; check that it speaks System One")
    if given.get("type") != question.type:
        raise ObserverError(
            f"the server answered '{name}' with type {given.get('type')!r}, asked was {question.type}; check the server"
        )
    if question.type == "noul":
        p = _probability(name, "noul", given.get("noul"))
        return Answer("noul", {"false": 1.0 - p, "true": p})
    options, probabilities = expected_options(name, question), given.get("probabilities")
    if not isinstance(probabilities, Mapping) or set(probabilities) != set(options):
        keys = sorted(map(str, probabilities)) if isinstance(probabilities, Mapping) else "none"
        raise ObserverError(
            f"the server's probabilities for '{name}' are not over the options asked (got {_short(keys)}); check the "
            "server"
        )
    values = [_probability(name, option, probabilities[option]) for option in options]
    total = math.fsum(values)
    if abs(total - 1) > max(SUM_TOLERANCE, len(values) * _half_unit(values)):
        raise ObserverError(f"the server's probabilities for '{name}' sum to {total:.3f}, not 1; check the server")
    return Answer(question.type, {option: p / total for option, p in zip(options, values, strict=True)})


def _probability(name: str, option: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:  # refuses NaN too
        raise ObserverError(f"the server's probability of '{option}' for '{name}' is {value!r}; check the server")
    return float(value)


def _half_unit(values: list[float]) -> float:
    """Half a unit in the last decimal that any value shows."""
    decimals = max(len(repr(value).partition(".")[2]) if "e" not in repr(value) else 17 for value in values)
    return 0.5 * 10.0 ** -max(MIN_DECIMALS, decimals)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"
