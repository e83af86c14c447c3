"""Chat messages with tool calls: `{"messages": […]}` as OpenAI's API takes them, or as LangChain dumps them.

The run is the last turn: from the last message of the user on.
"""

import json
from typing import Any

from observer_core.traces.dialects.message import Message, last_answer, messages_of
from observer_core.traces.trace import ABSENT, FieldError, Trace
from observer_pipeline.react_logs.steps import Step, others_of, result_of, trace_of

_LANGCHAIN_ROLES = {
    "human": "user", "HumanMessage": "user", "ai": "assistant", "AIMessage": "assistant", "system": "system",
    "SystemMessage": "system", "tool": "tool", "ToolMessage": "tool",
}  # fmt: skip


def matches(value: Any) -> bool:
    """Whether a JSON value is of this format: an object with messages, or the list of them."""
    messages = value.get("messages") if isinstance(value, dict) else value
    return isinstance(messages, list) and bool(messages) and isinstance(messages[0], dict)


def read(value: Any) -> Trace:
    """The trace of the last turn of a conversation; what stands beside `messages` are fields of the trace.

    Raises:
        FieldError: no message of the user, or a field cannot be used.
    """
    raw = value["messages"] if isinstance(value, dict) else value
    others = {key: item for key, item in value.items() if key != "messages"} if isinstance(value, dict) else {}
    messages = messages_of([_plain(item) for item in raw])
    asked = [place for place, message in enumerate(messages) if message.role == "user" and message.text.strip()]
    if not asked:
        raise FieldError("messages", "has no message of the user")
    turn = messages[asked[-1] :]
    return trace_of(turn[0].text, last_answer(turn) or "", _steps(turn), others)


def write(trace: Trace) -> dict[str, Any]:
    """The conversation of a trace, with the fields that messages have no place for beside it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": trace.question}]
    for number, call in enumerate(trace.tool_calls, 1):
        arguments = json.dumps({} if call.args is ABSENT else call.args, ensure_ascii=False)
        made = {"id": f"call_{number}", "type": "function", "function": {"name": call.name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": result_of(call)})
    messages.append({"role": "assistant", "content": trace.final_answer})
    return {"messages": messages} | others_of(trace)


def _steps(turn: list[Message]) -> list[Step]:
    waiting = [result for message in turn for result in message.results]
    steps = []
    for call in (call for message in turn for call in message.calls):
        place = next(
            (i for i, result in enumerate(waiting) if (result.id == call.id if result.id and call.id else True)), None
        )
        result = ABSENT if place is None else waiting.pop(place).value
        steps.append(Step(call.name, ABSENT if call.args == {} else call.args, result))
    return steps


def _plain(message: Any) -> Any:
    """A message with OpenAI's names: LangChain has `type` for the role, and wraps its dumps in `kwargs`."""
    if not isinstance(message, dict):
        return message
    kind = message.get("type")
    if isinstance(message.get("kwargs"), dict):
        kind = (message.get("id") or [None])[-1]
        message = message["kwargs"]
    role = message.get("role") or _LANGCHAIN_ROLES.get(str(kind if kind is not None else message.get("type")))
    return message | {"role": role} if role else message
