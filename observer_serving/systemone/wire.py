"""System One's request and response: what is accepted, and how readings are told.

Accepted is what the official schema accepts and a little more: any JSON value where it allows text, objects and lists;
unknown fields are ignored. Refused is what this server could only answer wrongly: images, unknown question types,
descriptions of outcomes a noul does not have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from observer_core.decision.confidence import choice_confidence, score_confidence
from observer_core.decision.protocol import Answer, Plan, Reading
from observer_core.questions import Question
from observer_serving.systemone.errors import invalid, problem

MAX_OPTIONS = 255
MAX_LEVELS = 10
MAX_DEPTH = 100
"""Levels of nested objects and lists; families render them recursively."""


def _present(value: Any) -> Any:
    if value is None:
        raise PydanticCustomError("missing_value", "Input should be text, an object or a list, not null")
    return value


def _no_assets(value: Any) -> Any:
    if value:
        raise PydanticCustomError("assets_unsupported", "This model reads no images; leave assets out")
    return value


_Present = Annotated[Any, AfterValidator(_present)]


class _NoulCriteria(BaseModel):
    model_config = ConfigDict(extra="forbid")

    true: Any = None
    false: Any = None


class _Noul(BaseModel):
    type: Literal["noul"]
    instructions: Any = None
    criteria: _NoulCriteria | None = None


class _Choice(BaseModel):
    type: Literal["choice"]
    instructions: Any = None
    criteria: dict[str, Any] = Field(min_length=1, max_length=MAX_OPTIONS)


class _Score(BaseModel):
    type: Literal["score"]
    instructions: Any = None
    criteria: list[_Present] = Field(min_length=1, max_length=MAX_LEVELS)


class _Body(BaseModel):
    model: str
    state: _Present
    questions: dict[
        Annotated[str, Field(min_length=1)], Annotated[_Noul | _Choice | _Score, Field(discriminator="type")]
    ] = Field(min_length=1)
    assets: Annotated[Any, AfterValidator(_no_assets)] = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is well formed; whether it fits the model's window is not known yet."""

    model: str
    state: Any
    questions: dict[str, Question]


def read_request(data: bytes, *, max_questions: int) -> Request:
    """Parse and check a body.

    Raises:
        WireError: 422 with what is wrong with it.
    """
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid([problem([error.pos], f"JSON decode error: {error.msg}", "json_invalid")]) from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _deeper_than(raw, MAX_DEPTH):
        raise invalid([problem([], f"Input should be nested at most {MAX_DEPTH} levels deep", "too_deep")])
    questions = raw.get("questions") if isinstance(raw, dict) else None
    if isinstance(questions, dict) and len(questions) > max_questions:
        message = f"Dictionary should have at most {max_questions} items after validation, not {len(questions)}"
        raise invalid([problem(["questions"], message, "too_long")])
    try:
        body = _Body.model_validate(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid([problem(each["loc"], each["msg"], each["type"]) for each in found]) from None
    # The values as they were sent: the models above only check them.
    asked = {
        name: Question(
            type=checked.type,
            instructions=checked.instructions,
            criteria=raw["questions"][name].get("criteria"),
        )
        for name, checked in body.questions.items()
    }
    return Request(body.model, raw["state"], asked)


def _deeper_than(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def response_body(model: str, plan: Plan, reading: Reading) -> bytes:
    """The body of a 200.

    `usage.input_tokens` counts the state once and each question; `output_tokens`, since no text is generated, the
    probabilities given. `x_state_truncated` is this server's own field.
    """
    answers = {name: answer_object(plan.questions[name], answer) for name, answer in reading.answers.items()}
    return orjson.dumps(
        {
            "model": model,
            "answers": answers,
            "usage": {
                "input_tokens": plan.input_tokens,
                "output_tokens": sum(len(answer.probabilities) for answer in reading.answers.values()),
            },
            "x_state_truncated": reading.truncated,
        }
    )


def answer_object(question: Question, answer: Answer) -> Mapping[str, Any]:
    """An answer with legend and confidence; a noul has neither."""
    body = answer.to_json()
    probabilities = list(answer.probabilities.values())
    if answer.type == "choice":
        body["confidence"] = choice_confidence(probabilities)
    elif answer.type == "score":
        body["legend"] = {str(level): _legend(text) for level, text in enumerate(question.criteria)}
        body["confidence"] = score_confidence(probabilities)
    return body


def _legend(level: Any) -> Any:
    """A level's description; clients read text, objects and lists only."""
    return level if isinstance(level, str | dict | list) else orjson.dumps(level).decode()
