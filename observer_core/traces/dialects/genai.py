"""OpenTelemetry's GenAI semantic conventions (`gen_ai.*`), new and old; the one home of their attribute names."""

from typing import Any

from observer_core.traces.dialects.message import Kind, Message, last_answer, last_user_text, message_of, messages_of
from observer_core.traces.evidence import evidence_texts
from observer_core.traces.spans import SpanView, in_order
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
    return messages_of(span.json(INPUT_MESSAGES)) or _old_messages(span, OLD_PROMPT)


def messages_out(span: SpanView) -> list[Message]:
    return messages_of(span.json(OUTPUT_MESSAGES)) or _old_messages(span, OLD_COMPLETION)


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
