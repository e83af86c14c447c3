"""OpenInference: `openinference.span.kind`, `input.value`, `llm.*`, `tool.*`, `retrieval.documents.*`."""

from typing import Any, get_args

from openinference.semconv.trace import (
    DocumentAttributes,
    MessageAttributes,
    MessageContentAttributes,
    SpanAttributes,
    ToolCallAttributes,
)

from observer_core.traces.dialects.message import (
    Kind,
    Message,
    MessageCall,
    MessageResult,
    answer_text,
    join,
    langchain_fields,
    loads,
    question_text,
    role_of,
)
from observer_core.traces.evidence import evidence_texts, result_text
from observer_core.traces.spans import SpanView, count_pair, in_order
from observer_core.traces.trace import ABSENT

_KINDS = frozenset(get_args(Kind))
_JSON = "application/json"


def kind(span: SpanView) -> Kind | None:
    value = span.word(SpanAttributes.OPENINFERENCE_SPAN_KIND)
    return value if value in _KINDS else None  # pyright: ignore[reportReturnType]


def input_text(span: SpanView) -> str | None:
    return _reading(span, SpanAttributes.INPUT_VALUE, SpanAttributes.INPUT_MIME_TYPE, question_text)


def output_text(span: SpanView) -> str | None:
    return _reading(span, SpanAttributes.OUTPUT_VALUE, SpanAttributes.OUTPUT_MIME_TYPE, answer_text)


def messages_in(span: SpanView) -> list[Message]:
    return _messages(span, SpanAttributes.LLM_INPUT_MESSAGES)


def messages_out(span: SpanView) -> list[Message]:
    return _messages(span, SpanAttributes.LLM_OUTPUT_MESSAGES)


def model(span: SpanView) -> str | None:
    return span.text(SpanAttributes.LLM_MODEL_NAME)


def tokens(span: SpanView) -> tuple[int, int] | None:
    return count_pair(span, [SpanAttributes.LLM_TOKEN_COUNT_PROMPT], [SpanAttributes.LLM_TOKEN_COUNT_COMPLETION])


def tool_name(span: SpanView) -> str | None:
    return span.text(SpanAttributes.TOOL_NAME)


def tool_arguments(span: SpanView) -> Any:
    value = _value(span, SpanAttributes.INPUT_VALUE, SpanAttributes.INPUT_MIME_TYPE)
    return value if value is not ABSENT else loads(span.get(SpanAttributes.TOOL_PARAMETERS))


def tool_result(span: SpanView) -> Any:
    value = _value(span, SpanAttributes.OUTPUT_VALUE, SpanAttributes.OUTPUT_MIME_TYPE)
    # ADK's instrumentor wraps what the tool returned in the function response, LangChain's in a message.
    if isinstance(value, dict) and value.keys() == {"id", "name", "response"}:
        return value["response"]
    message = langchain_fields(value)
    if message is not value and message.get("type") == "tool":
        content = loads(message.get("content"))
        return {"error": content} if message.get("status") == "error" else content
    return value


def documents(span: SpanView) -> list[str]:
    out: list[str] = []
    for item in in_order(span.tree(SpanAttributes.RETRIEVAL_DOCUMENTS + ".")):
        content = _at(item, DocumentAttributes.DOCUMENT_CONTENT)
        metadata = loads(_at(item, DocumentAttributes.DOCUMENT_METADATA))  # Phoenix hands it back taken apart
        title = metadata.get("title") if isinstance(metadata, dict) else None
        if content is not None:
            out += evidence_texts({"text": result_text(content), "title": title})
    return out


def _value(span: SpanView, key: str, mime_key: str) -> Any:
    """A value as its MIME type says: text stays text; JSON, or what may be JSON where no type is given, is parsed."""
    if key not in span:
        return ABSENT
    mime = span.word(mime_key)
    return span.json(key) if mime is None or mime == _JSON else span.get(key)


def _reading(span: SpanView, key: str, mime_key: str, read: Any) -> str | None:
    value = _value(span, key, mime_key)
    if value is ABSENT:
        return None
    text = read(value)
    # An ADK event or an OpenAI answer without text says nothing; a shape nobody knows is shown as it is.
    return text if text is not None or _is_known_shape(value) else span.text(key)


def _is_known_shape(value: Any) -> bool:
    return isinstance(value, dict) and not value.keys().isdisjoint(
        ("new_message", "messages", "contents", "content", "parts", "choices", "invocation_id", "finish_reason")
    )


def _messages(span: SpanView, prefix: str) -> list[Message]:
    return [_message(item) for item in in_order(span.tree(prefix + ".")) if isinstance(item, dict)]


def _message(item: dict[str, Any]) -> Message:
    text = _at(item, MessageAttributes.MESSAGE_CONTENT)
    if text is None:
        parts = in_order(_at(item, MessageAttributes.MESSAGE_CONTENTS))
        text = join([_part_text(part) for part in parts])
    message = Message(role_of(_at(item, MessageAttributes.MESSAGE_ROLE)), result_text(text))
    for call in in_order(_at(item, MessageAttributes.MESSAGE_TOOL_CALLS)):
        name = _at(call, ToolCallAttributes.TOOL_CALL_FUNCTION_NAME)
        if isinstance(name, str):
            args = loads(_at(call, ToolCallAttributes.TOOL_CALL_FUNCTION_ARGUMENTS_JSON))
            message.calls.append(MessageCall(name, args, _at(call, ToolCallAttributes.TOOL_CALL_ID)))
    if message.role == "tool":
        call_id = _at(item, MessageAttributes.MESSAGE_TOOL_CALL_ID)
        message.results.append(MessageResult(loads(message.text), _at(item, MessageAttributes.MESSAGE_NAME), call_id))
    return message


def _part_text(part: Any) -> str:
    kind_of_part = _at(part, MessageContentAttributes.MESSAGE_CONTENT_TYPE)
    text = _at(part, MessageContentAttributes.MESSAGE_CONTENT_TEXT)
    return text if kind_of_part in (None, "text") and isinstance(text, str) else ""


def _at(node: Any, path: str) -> Any:
    """The value at a dotted path of a `SpanView.tree`."""
    for segment in path.split("."):
        if not isinstance(node, dict):
            return None
        node = node.get(segment)
    return node
