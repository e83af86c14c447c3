"""Chat messages and the JSON around them, in the shapes that agents' inputs and outputs take."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from observer_core.traces.tolerant import parse_tolerant
from observer_core.traces.trace import ABSENT

Kind = Literal[
    "AGENT", "CHAIN", "LLM", "TOOL", "RETRIEVER", "EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR", "PROMPT"
]

_THOUGHTS = ("reasoning", "thinking", "redacted_thinking")
_ROLES = {"model": "assistant", "human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_LANGCHAIN_TYPES = ("human", "ai", "AIMessageChunk", "system", "tool")
_QUESTION_KEYS = ("question", "query", "user_input", "user_message", "prompt", "input", "message", "text", "content")
_ANSWER_KEYS = ("final_answer", "answer", "output", "response", "result", "text", "message", "content")


@dataclass(slots=True)
class MessageCall:
    """A tool call a model asked for."""

    name: str
    args: Any = ABSENT
    id: str | None = None


@dataclass(slots=True)
class MessageResult:
    """A tool's result handed back to the model."""

    value: Any
    name: str | None = None
    id: str | None = None


@dataclass(slots=True)
class Message:
    """One chat message: `role` is `user`, `assistant`, `system` or `tool`; `text` leaves thoughts out."""

    role: str
    text: str = ""
    calls: list[MessageCall] = field(default_factory=list)
    results: list[MessageResult] = field(default_factory=list)


def role_of(role: Any) -> str:
    """The role in one vocabulary: Google's `model` and LangChain's `ai` are the assistant."""
    return _ROLES.get(role, role) if isinstance(role, str) else "user"


def langchain_fields(value: Any) -> Any:
    """The fields of a message in either of LangChain's wrappings (`data` beside `type`, or `kwargs`); else `value`."""
    if isinstance(value, dict):
        if isinstance(value.get("data"), dict) and value.get("type") in _LANGCHAIN_TYPES:
            return value["data"]
        if "lc" in value and isinstance(value.get("kwargs"), dict):
            return value["kwargs"]
    return value


def loads(value: Any) -> Any:
    """A JSON value from an attribute that may hold it as text; `None` is `ABSENT`."""
    if value is None:
        return ABSENT
    return parse_tolerant(value)[0] if isinstance(value, str) else value


def join(texts: Sequence[str]) -> str:
    """Parts of one message as one text."""
    return "\n".join(text for text in texts if text)


def message_of(value: Any) -> Message | None:
    """A message from its JSON: OpenAI's, Google's (`parts`), GenAI semantic conventions' (`parts` with `type`),
    LangChain's (wrapped, or a pair of role and text)."""
    if isinstance(value, str):
        return Message("user", value)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value):
        return Message(role_of(value[0]), value[1])
    value = langchain_fields(value)
    if not isinstance(value, dict):
        return None
    typed = value["type"] if value.get("type") in _LANGCHAIN_TYPES else None
    message = Message(role_of(value.get("role", typed)))
    parts = value.get("parts", value.get("content"))
    texts = [_take_part(part, message) for part in (parts if isinstance(parts, list) else [parts])]
    message.text = join(texts)
    calls = value.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            function = call["function"] if isinstance(call.get("function"), dict) else call
            _add_call(message, function.get("name"), function.get("arguments", function.get("args")), call.get("id"))
    if message.role == "tool" and not message.results:
        message.results.append(MessageResult(loads(message.text), value.get("name"), value.get("tool_call_id")))
    return message


def _take_part(part: Any, message: Message) -> str:
    """The text of one part of a message; its tool calls and results go into the message."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("thought") or part.get("type") in _THOUGHTS:
        return ""
    call = part.get("function_call") or (
        part if part.get("type") in ("tool_call", "tool_use", "function_call") else None
    )
    if isinstance(call, dict):
        args = call.get("args", call.get("arguments", call.get("input")))
        _add_call(message, call.get("name"), args, call.get("id") or call.get("call_id"))
        return ""
    result = part.get("function_response") or (
        part if part.get("type") in ("tool_call_response", "tool_result") else None
    )
    if isinstance(result, dict):
        value = next((result[key] for key in ("response", "result", "content") if key in result), None)
        message.results.append(
            MessageResult(loads(value), result.get("name"), result.get("id") or result.get("tool_use_id"))
        )
        return ""
    text = part.get("text", part.get("content"))
    return text if isinstance(text, str) else ""


def _add_call(message: Message, name: Any, args: Any, call_id: Any) -> None:
    if isinstance(name, str) and name:
        message.calls.append(MessageCall(name, loads(args), call_id if isinstance(call_id, str) and call_id else None))


def messages_of(value: Any) -> list[Message]:
    """Messages from the JSON of a list of them, or of an object that holds such a list."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("messages", "contents") if isinstance(value.get(key), list)), [value])
    if not isinstance(value, list):
        return []
    return [message for message in map(message_of, value) if message is not None]


def last_user_text(messages: Sequence[Message]) -> str | None:
    """What the user said last: in a conversation, the question of this turn."""
    return next((m.text for m in reversed(messages) if m.role == "user" and m.text.strip()), None)


def last_answer(messages: Sequence[Message]) -> str | None:
    """The assistant's last text that comes without tool calls."""
    return next((m.text for m in reversed(messages) if m.role == "assistant" and m.text.strip() and not m.calls), None)


def question_text(value: Any) -> str | None:
    """The user's words in the JSON of a step's input; `None` when no known shape holds any."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return last_user_text(messages_of(value))
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("new_message"), dict):
        message = message_of(value["new_message"])
        return message.text if message else None
    for key in ("messages", "contents"):
        if isinstance(value.get(key), list):
            return last_user_text(messages_of(value[key]))
    return _first_text(value, _QUESTION_KEYS, question_text)


def answer_text(value: Any) -> str | None:
    """The final words in the JSON of a step's output; `None` when no known shape holds any."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return last_answer([_as_assistant(message) for message in messages_of(value)])
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("content"), dict) or isinstance(value.get("content") or value.get("parts"), list):
        content = value["content"] if isinstance(value.get("content"), dict) else value
        message = message_of(content)
        return message.text or None if message and not message.calls else None
    if isinstance(value.get("choices"), list):
        choices = [choice.get("message") for choice in value["choices"] if isinstance(choice, dict)]
        return last_answer([_as_assistant(message) for message in messages_of(choices)])
    if isinstance(value.get("messages"), list):
        return last_answer(messages_of(value["messages"]))
    return _first_text(value, _ANSWER_KEYS, answer_text)


def _as_assistant(message: Message) -> Message:
    """Outputs often leave the role out; what a model says is the assistant's."""
    if message.role == "user":
        message.role = "assistant"
    return message


def _first_text(value: dict[str, Any], keys: Sequence[str], read: Any) -> str | None:
    for key in keys:
        if value.get(key) is not None and (text := read(value[key])):
            return text
    return None
