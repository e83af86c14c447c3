"""Google ADK's own attributes (`gcp.vertex.agent.*`), filled by its legacy telemetry schema, empty in others."""

from typing import Any

from observer_core.traces.dialects import genai
from observer_core.traces.dialects.message import Kind, Message, message_of, messages_of
from observer_core.traces.spans import SpanView
from observer_core.traces.trace import ABSENT

LLM_REQUEST = "gcp.vertex.agent.llm_request"
LLM_RESPONSE = "gcp.vertex.agent.llm_response"
TOOL_ARGUMENTS = "gcp.vertex.agent.tool_call_args"
TOOL_RESPONSE = "gcp.vertex.agent.tool_response"

_NOTHING = frozenset({"", "{}", "N/A", "<not serializable>"})
_MERGED = "(merged tools)"


def is_merged_tools(span: SpanView) -> bool:
    """Whether this span only repeats tools that ran in parallel, each of which has a span of its own."""
    return span.word(genai.TOOL_NAME) == _MERGED or span.span.name == "execute_tool (merged)"


def kind(span: SpanView) -> Kind | None:
    if _has(span, LLM_REQUEST):
        return "LLM"
    return "TOOL" if _has(span, TOOL_ARGUMENTS) or _has(span, TOOL_RESPONSE) else None


def input_text(_span: SpanView) -> str | None:
    return None


def output_text(_span: SpanView) -> str | None:
    return None


def messages_in(span: SpanView) -> list[Message]:
    return messages_of(span.json(LLM_REQUEST)) if _has(span, LLM_REQUEST) else []


def messages_out(span: SpanView) -> list[Message]:
    response = span.json(LLM_RESPONSE) if _has(span, LLM_RESPONSE) else None
    message = message_of(response.get("content")) if isinstance(response, dict) else None
    return [message] if message is not None else []


def model(_span: SpanView) -> str | None:
    return None


def tokens(_span: SpanView) -> tuple[int, int] | None:
    return None


def tool_name(_span: SpanView) -> str | None:
    return None


def tool_arguments(span: SpanView) -> Any:
    return span.json(TOOL_ARGUMENTS) if _has(span, TOOL_ARGUMENTS) else ABSENT


def tool_result(span: SpanView) -> Any:
    return span.json(TOOL_RESPONSE) if _has(span, TOOL_RESPONSE) else ABSENT


def documents(_span: SpanView) -> list[str]:
    return []


def _has(span: SpanView, key: str) -> bool:
    """ADK writes `{}` or `N/A` where the other schema, or nobody, has the content."""
    return (span.word(key) or "") not in _NOTHING
