"""Logs of ReAct agents as traces, and traces as such logs. A new format is one module and one line in `FORMATS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from observer_core.traces.trace import Trace
from observer_pipeline.react_logs import langchain, openai_messages


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A format with one JSON object per run: whether an object is of it, and the way there and back."""

    matches: Callable[[Any], bool]
    read: Callable[[dict[str, Any]], Trace]
    write: Callable[[Trace], dict[str, Any]]


def _is_labeled(value: Any) -> bool:
    return isinstance(value, dict) and "question" in value and "final_answer" in value


FORMATS: dict[str, JsonFormat] = {
    "jsonl": JsonFormat(_is_labeled, Trace.from_json, Trace.to_json),
    "langchain": JsonFormat(langchain.matches, langchain.read, langchain.write),
    "openai": JsonFormat(openai_messages.matches, openai_messages.read, openai_messages.write),
}
"""Asked in this order; what none knows is read as a labeled trace, whose reader says what is missing."""


def trace_of_json(value: Any) -> Trace:
    """The trace of one JSON value, in whichever of the formats it is.

    Raises:
        FieldError: it is of none, or a field cannot be used.
    """
    found = next((form for form in FORMATS.values() if form.matches(value)), FORMATS["jsonl"])
    return found.read(value)
