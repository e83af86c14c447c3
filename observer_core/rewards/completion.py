"""What a completion says, and how it fails to say it.

A completion is a JSON object with an answer, the artefacts it cites and a stated confidence; a Markdown fence around
it is taken off. A completion that cannot be read is a state of its own, with a class and the exact bytes at fault,
never a bad answer.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

JSON_KINDS = (
    "empty",
    "not_json",
    "text_before",
    "text_after",
    "not_an_object",
    "truncated",
    "raw_newline",
    "raw_tab",
    "raw_control",
    "bad_escape",
    "bad_quotes",
    "trailing_comma",
    "missing_comma",
    "non_finite",
    "not_unicode",
    "too_deep",
    "syntax",
)
"""Why a completion is not a JSON object."""
SHAPE_KINDS = ("missing_field", "wrong_type", "out_of_range")
"""Why a JSON object is not the one asked for: its other fields are still read."""
KINDS = JSON_KINDS + SHAPE_KINDS

_FENCE = re.compile(r"\A\s*```[a-zA-Z0-9_-]*[ \t]*\r?\n?(.*?)(?:\r?\n?```\s*)?\Z", re.DOTALL)
_CONTROL = {"\n": "raw_newline", "\r": "raw_newline", "\t": "raw_tab"}


@dataclass(frozen=True, slots=True)
class ParseError:
    """`kind` is one of `KINDS`; `at` shows the offending bytes (`0x0A`) or field; `position` counts code points of
    the JSON text.
    """

    kind: str
    at: str = ""
    position: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}({self.at})" if self.at else self.kind


@dataclass(frozen=True, slots=True)
class Shape:
    """The completion's field names."""

    answer: str = "answer"
    cited: str = "cited_artifacts"
    confidence: str = "confidence"


DEFAULT_SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion as read. `answer`, `cited` and `confidence` are None where `error` says they could not be read."""

    text: str
    answer: str | None = None
    cited: tuple[str, ...] | None = None
    confidence: float | None = None
    error: ParseError | None = None

    @property
    def parsed(self) -> bool:
        """Whether the text is a JSON object at all (fields may still be missing)."""
        return self.error is None or self.error.kind in SHAPE_KINDS


class Reading(NamedTuple):
    """What a completion's reading gave, without its texts: cheap to hand from process to process. `cited` counts."""

    kind: str | None
    at: str
    confidence: float | None
    cited: int | None

    @property
    def parsed(self) -> bool:
        """Whether the text was a JSON object at all."""
        return self.kind is None or self.kind in SHAPE_KINDS

    def __str__(self) -> str:
        return f"{self.kind}({self.at})" if self.at else str(self.kind)


def reading_of(completion: Completion) -> Reading:
    """A completion without its texts."""
    error, cited = completion.error, completion.cited
    return Reading(
        error.kind if error else None,
        error.at if error else "",
        completion.confidence,
        None if cited is None else len(cited),
    )


def read_completion(text: str, shape: Shape = DEFAULT_SHAPE) -> Completion:
    """Read a completion; never raises, what is wrong is in `error` (the first thing found)."""
    body = unfence(text)
    try:
        obj = orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError):
        return Completion(text, error=explain_json_error(body))
    if not isinstance(obj, dict):
        return Completion(text, error=ParseError("not_an_object", type(obj).__name__))
    return _read_fields(text, obj, shape)


def plain_completion(text: str) -> Completion:
    """A completion of a run whose completions are plain text: the text is the answer."""
    return Completion(text, answer=text, cited=())


def unfence(text: str) -> str:
    """The text without a Markdown fence and surrounding white space; a fence that was never closed is taken off too."""
    body = text.strip()
    if body.startswith("```"):
        match = _FENCE.match(body)
        if match:
            body = match.group(1).strip()
    return body


def explain_json_error(body: str) -> ParseError:
    """Why `body` is not JSON: the class of the first error and the exact bytes at fault."""
    if not body:
        return ParseError("empty")
    start = body.find("{")
    if start < 0:
        return ParseError("not_json", _bytes_at(body, 0), 0)
    if start > 0 and body[0] not in '{["':
        return ParseError("text_before", _bytes_at(body, 0), 0)
    try:
        json.loads(body, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return _classify(body, error)
    except _NonFiniteError as error:
        return ParseError("non_finite", str(error))
    except RecursionError:
        return ParseError("too_deep")
    return ParseError("not_unicode" if any("\ud800" <= c <= "\udfff" for c in body) else "syntax")


class _NonFiniteError(ValueError):
    pass


def _refuse_constant(name: str) -> Any:
    raise _NonFiniteError(name)


def _bytes_at(body: str, position: int) -> str:
    character = body[position : position + 1]
    return (
        "".join(f"0x{byte:02X}" for byte in character.encode("utf-8", "surrogatepass")) if character else "end of text"
    )


def _classify(body: str, error: json.JSONDecodeError) -> ParseError:
    position, message = error.pos, error.msg
    at_end = position >= len(body.rstrip())
    if message.startswith("Invalid control character"):
        return ParseError(_CONTROL.get(body[position], "raw_control"), _bytes_at(body, position), position)
    if message.startswith("Unterminated string") or at_end:
        return ParseError("truncated", "end of text", len(body))
    if message.startswith("Invalid \\"):
        # An escape cut off by the end of the text is a cut, not a bad escape.
        kind = "truncated" if position + 6 > len(body) and body[position:].strip('"\\') == "" else "bad_escape"
        return ParseError(kind, _bytes_at(body, position + 1), position)
    if message.startswith("Extra data"):
        return ParseError("text_after", _bytes_at(body, position), position)
    if message.startswith("Illegal trailing comma"):
        return ParseError("trailing_comma", _bytes_at(body, position), position)
    if message.startswith("Expecting property name"):
        kind = "trailing_comma" if body[position] == "}" else "bad_quotes"
        return ParseError(kind, _bytes_at(body, position), position)
    if message.startswith("Expecting value") and body[position] in "]}" and body[:position].rstrip().endswith(","):
        return ParseError("trailing_comma", _bytes_at(body, position), position)
    if message.startswith("Expecting value") and body[position] in "'“”":
        return ParseError("bad_quotes", _bytes_at(body, position), position)
    if message.startswith("Expecting ','"):
        return ParseError("missing_comma", _bytes_at(body, position), position)
    return ParseError("syntax", _bytes_at(body, position), position)


def _read_fields(text: str, obj: dict[str, Any], shape: Shape) -> Completion:
    error: ParseError | None = None
    answer = obj.get(shape.answer)
    if not isinstance(answer, str):
        error = ParseError("missing_field" if shape.answer not in obj else "wrong_type", shape.answer)
        answer = None
    cited: tuple[str, ...] | None = None
    raw = obj.get(shape.cited)
    if isinstance(raw, list) and all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in raw):
        cited = tuple(map(str, raw))
    else:
        error = error or ParseError("missing_field" if shape.cited not in obj else "wrong_type", shape.cited)
    confidence = obj.get(shape.confidence)
    if isinstance(confidence, bool) or not isinstance(confidence, (int, float)):
        error = error or ParseError("missing_field" if shape.confidence not in obj else "wrong_type", shape.confidence)
        confidence = None
    elif not (math.isfinite(confidence) and 0 <= confidence <= 1):
        error = error or ParseError("out_of_range", f"{shape.confidence}={confidence}")
        confidence = None
    return Completion(text, answer, cited, None if confidence is None else float(confidence), error)


def completion_text(value: Any) -> tuple[str, Any]:
    """The exact text that the model wrote: a string as it is, of messages the assistant's contents joined by a
    newline.
    """
    if isinstance(value, str):
        return value, None
    if isinstance(value, list) and value and all(isinstance(m, dict) for m in value):
        return "\n".join(message_text(m) for m in value if m.get("role", "assistant") == "assistant"), value
    return orjson.dumps(value, default=str).decode(), None


def message_text(message: dict[str, Any]) -> str:
    """The text of a message, whose content may be a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
