"""ADK's requests and replies as the plain turns that chat servers speak of; what their adapters have in common."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.adk.models import LlmRequest, LlmResponse
from google.genai import types

from observer_core.traces.jsonl import parse_json

UNNAMED = "unnamed"
"""The name of a call whose model gave it none."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation: `role` is `system`, `user`, `assistant` or `tool` (then with one result)."""

    role: str
    text: str = ""
    calls: tuple[types.FunctionCall, ...] = ()
    result: types.FunctionResponse | None = None

    @property
    def result_text(self) -> str:
        """The tool's result as JSON."""
        response = self.result.response if self.result else None
        return json.dumps(response or {}, ensure_ascii=False)


def turns_of(request: LlmRequest) -> Iterator[Turn]:
    """The conversation of a request, the instruction first; thoughts are left out."""
    instruction = request.config.system_instruction if request.config else None
    if instruction:
        yield Turn("system", str(instruction))
    for content in request.contents:
        parts = content.parts or []
        for part in parts:
            if part.function_response is not None:
                yield Turn("tool", result=part.function_response)
        text = "\n".join(part.text for part in parts if part.text and not part.thought)
        calls = tuple(part.function_call for part in parts if part.function_call is not None)
        if text or calls:
            yield Turn("assistant" if content.role == "model" else "user", text, calls)


def tools_of(request: LlmRequest) -> list[dict[str, Any]]:
    """The declared tools, as both Ollama and OpenAI want them."""
    declared = (request.config.tools if request.config else None) or []
    return [
        {
            "type": "function",
            "function": {
                "name": function.name,
                "description": function.description or "",
                "parameters": function.parameters_json_schema or {"type": "object", "properties": {}},
            },
        }
        for tool in declared
        if isinstance(tool, types.Tool)
        for function in tool.function_declarations or []
    ]


@dataclass(slots=True)
class Reply:
    """A reply as it comes in: pieces of text, and tool calls with their arguments as JSON text or objects."""

    model: str
    text: str = ""
    thought: str = ""
    calls: list[types.FunctionCall] = field(default_factory=list)
    finish: str = "stop"
    prompt_tokens: int = 0
    answer_tokens: int = 0

    def add_call(self, name: str, arguments: Any, call_id: str | None = None) -> None:
        """Enter a tool call; arguments that are no JSON object are kept under one name, for the tool to refuse."""
        if isinstance(arguments, str):
            try:
                arguments = parse_json(arguments or "{}")
            except ValueError:
                arguments = {"arguments": arguments}
        args = _writable(dict(arguments) if isinstance(arguments, dict) else {"arguments": arguments})
        self.calls.append(types.FunctionCall(id=call_id, name=_writable(name) or UNNAMED, args=args))

    def piece(self, text: str) -> LlmResponse:
        """A piece of a stream, for whoever shows it as it comes."""
        content = types.Content(role="model", parts=[types.Part(text=_writable(text))])
        return LlmResponse(content=content, partial=True, model_version=self.model)

    def whole(self) -> LlmResponse:
        """The reply as one; without text and calls it has no parts, which ADK records as an empty reply."""
        parts = [types.Part(text=_writable(self.thought), thought=True)] if self.thought else []
        parts += [types.Part(text=_writable(self.text))] if self.text else []
        parts += [types.Part(function_call=call) for call in self.calls]
        reason = types.FinishReason.MAX_TOKENS if self.finish == "length" else types.FinishReason.STOP
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=self.prompt_tokens,
            candidates_token_count=self.answer_tokens,
            total_token_count=self.prompt_tokens + self.answer_tokens,
        )
        return LlmResponse(
            content=types.Content(role="model", parts=parts),
            finish_reason=reason,
            usage_metadata=usage,
            model_version=self.model,
        )


def _writable(value: Any) -> Any:
    """The value with `?` for each half of a surrogate pair: a model's tokens may split one, and no file takes it."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list) else value
