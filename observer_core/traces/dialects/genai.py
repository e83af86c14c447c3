"""OpenTelemetry's GenAI semantic conventions (`gen_ai.*`), new and old; the one home of their attribute names.

Content comes as attributes, as one event with the same attributes (`…operation.details`), or, from older
instrumentations, as one event per message or as events with one JSON text each.
"""

from typing import Any

from observer_core.traces.dialects.message import Kind, Message, last_answer, last_user_text, message_of, messages_of
from observer_core.traces.evidence import evidence_texts
from observer_core.traces.spans import SpanView, count_pair, in_order, python_value
from observer_core.traces.trace import ABSENT

OPERATION = "gen_ai.operation.name"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
OLD_PROMPT = "gen_ai.prompt."
OLD_COMPLETION = "gen_ai.completion."
RESPONSE_MODEL = "gen_ai.response.model"
REQUEST_MODEL = "gen_ai.request.model"
TOOL_NAME = "gen_ai.tool.name"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
RETRIEVAL_DOCUMENTS = "gen_ai.retrieval.documents"
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
MESSAGE_EVENTS: dict[str, str] = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool", "gen_ai.choice": "assistant",
}  # fmt: skip
"""One event per message → its role where the event does not say."""
EVENT_CONTENT = "gen_ai.event.content"

_KINDS: dict[str, Kind] = {
    "chat": "LLM", "generate_content": "LLM", "text_completion": "LLM", "embeddings": "EMBEDDING",
    "execute_tool": "TOOL", "invoke_agent": "AGENT", "create_agent": "AGENT", "invoke_workflow": "CHAIN",
    "plan": "CHAIN", "retrieval": "RETRIEVER",
}  # fmt: skip


def kind(span: SpanView) -> Kind | None:
    return _KINDS.get(span.word(OPERATION) or "")


def input_text(span: SpanView) -> str | None:
    return last_user_text(messages_in(span))


def output_text(span: SpanView) -> str | None:
    return last_answer(messages_out(span))


def messages_in(span: SpanView) -> list[Message]:
    return (
        messages_of(span.json(INPUT_MESSAGES))
        or _old_messages(span, OLD_PROMPT)
        or _in_event(span, DETAILS_EVENT, INPUT_MESSAGES)
        or _in_event(span, "gen_ai.content.prompt", "gen_ai.prompt")
        or [message for name, message in _message_events(span) if name != "gen_ai.choice"]
    )


def messages_out(span: SpanView) -> list[Message]:
    return (
        messages_of(span.json(OUTPUT_MESSAGES))
        or _old_messages(span, OLD_COMPLETION)
        or _in_event(span, DETAILS_EVENT, OUTPUT_MESSAGES)
        or _in_event(span, "gen_ai.content.completion", "gen_ai.completion", role="assistant")
        or [message for name, message in _message_events(span) if name == "gen_ai.choice"]
    )


def tokens(span: SpanView) -> tuple[int, int] | None:
    return count_pair(span, INPUT_TOKENS, OUTPUT_TOKENS)


def model(span: SpanView) -> str | None:
    return span.text(REQUEST_MODEL) or span.text(RESPONSE_MODEL)


def tool_name(span: SpanView) -> str | None:
    return span.text(TOOL_NAME)


def tool_arguments(span: SpanView) -> Any:
    return span.json(TOOL_ARGUMENTS) if TOOL_ARGUMENTS in span else ABSENT


def tool_result(span: SpanView) -> Any:
    return span.json(TOOL_RESULT) if TOOL_RESULT in span else ABSENT


def documents(span: SpanView) -> list[str]:
    found = span.json(RETRIEVAL_DOCUMENTS)
    return evidence_texts(found) if isinstance(found, list) else []


def _in_event(span: SpanView, name: str, key: str, *, role: str | None = None) -> list[Message]:
    """The messages in the JSON that an event has under `key`; `role` where they do not say."""
    for value in span.event(name, key):
        parsed = span.parsed(value)
        items = parsed if isinstance(parsed, list) else [parsed]
        if role is not None:
            items = [{"role": role, "content": item} if isinstance(item, str) else item for item in items]
            items = [{"role": role, **item} if isinstance(item, dict) else item for item in items]
        found = messages_of(items)
        if found:
            return found
    return []


def _message_events(span: SpanView) -> list[tuple[str, Message]]:
    """The messages that have an event each, with the event's name."""
    out: list[tuple[str, Message]] = []
    for event in span.span.events:
        role = MESSAGE_EVENTS.get(event.name)
        if role is None:
            continue
        fields = {item.key: python_value(item.value) for item in event.attributes}
        content = span.parsed(fields.get(EVENT_CONTENT))
        fields = content if isinstance(content, dict) else fields
        inner = span.parsed(fields.get("message"))
        fields = inner if isinstance(inner, dict) else fields
        message = message_of({"role": role, **fields, "tool_calls": span.parsed(fields.get("tool_calls"))})
        if message is not None:
            out.append((event.name, message))
    return out


def _old_messages(span: SpanView, prefix: str) -> list[Message]:
    out: list[Message] = []
    for item in in_order(span.tree(prefix)):
        if isinstance(item, dict):
            item["tool_calls"] = in_order(item.get("tool_calls"))
            if prefix == OLD_COMPLETION:
                item.setdefault("role", "assistant")
            message = message_of(item)
            if message is not None:
                out.append(message)
    return out
