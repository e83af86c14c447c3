"""Spans of no convention: OpenLLMetry's `traceloop.*`, and bare names given by hand (`question`, `output`)."""

from typing import Any

from observer_core.traces.dialects.message import Kind, Message, answer_text, question_text
from observer_core.traces.spans import SpanView
from observer_core.traces.trace import ABSENT

KIND = "traceloop.span.kind"
ENTITY_NAME = "traceloop.entity.name"
INPUTS = ("traceloop.entity.input", "question", "query", "input")
OUTPUTS = ("traceloop.entity.output", "final_answer", "answer", "output")

_KINDS: dict[str, Kind] = {"workflow": "CHAIN", "task": "CHAIN", "agent": "AGENT", "tool": "TOOL"}


def kind(span: SpanView) -> Kind | None:
    return _KINDS.get(span.word(KIND) or "")


def input_text(span: SpanView) -> str | None:
    return _reading(span, INPUTS, question_text)


def output_text(span: SpanView) -> str | None:
    return _reading(span, OUTPUTS, answer_text)


def messages_in(_span: SpanView) -> list[Message]:
    return []


def messages_out(_span: SpanView) -> list[Message]:
    return []


def model(span: SpanView) -> str | None:
    return span.text("model")


def tokens(_span: SpanView) -> tuple[int, int] | None:
    return None


def tool_name(span: SpanView) -> str | None:
    return span.text(ENTITY_NAME) or span.text("tool")


def tool_arguments(span: SpanView) -> Any:
    return _first(span, INPUTS)


def tool_result(span: SpanView) -> Any:
    return _first(span, OUTPUTS)


def documents(_span: SpanView) -> list[str]:
    return []


def _first(span: SpanView, keys: tuple[str, ...]) -> Any:
    return next((span.json(key) for key in keys if key in span), ABSENT)


def _reading(span: SpanView, keys: tuple[str, ...], read: Any) -> str | None:
    for key in keys:
        if key in span:
            text = read(span.json(key))
            return span.text(key) if text is None else text
    return None
