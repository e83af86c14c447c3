"""The agent on a language model served by Ollama, through Ollama's own client."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import ollama
from google.adk.models import BaseLlm, LlmRequest, LlmResponse

from observer_pipeline.agent.models.chat_turns import Reply, Turn, tools_of, turns_of
from observer_pipeline.agent.models.ollama_server import explained, ollama_host

CONTEXT_TOKENS = 8192
"""Ollama's own default of 4,096 cuts the beginning off a run with six tool results, without a word."""


class OllamaLlm(BaseLlm):
    """A model of an Ollama server for ADK.

    Attributes:
        model: its name there, such as `qwen2.5:7b`.
        host: the server; `OLLAMA_HOST`, else loopback, when None.
        seed: of the sampling, which is greedy besides.
        timeout_s: how long one reply may take, the loading of the model included.
    """

    host: str | None = None
    seed: int = 0
    timeout_s: float = 300.0
    context_tokens: int = CONTEXT_TOKENS

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one reply; before it, when `stream`, its pieces.

        Raises:
            ModelError: no server, no such model, no tools, or no reply in time.
        """
        host = self.host or ollama_host()
        reply = Reply(self.model)
        with explained(self.model, host, self.timeout_s):
            client = ollama.AsyncClient(host=host, timeout=self.timeout_s)
            answer: Any = await client.chat(
                model=self.model,
                messages=[_message(turn) for turn in turns_of(llm_request)],
                tools=tools_of(llm_request) or None,
                stream=stream,
                options={"temperature": 0, "seed": self.seed, "num_ctx": self.context_tokens},
            )
            async for part in answer if stream else _one(answer):
                _take(reply, part)
                if stream and part.message.content:
                    yield reply.piece(part.message.content)
        yield reply.whole()


async def _one(answer: ollama.ChatResponse) -> AsyncIterator[ollama.ChatResponse]:
    yield answer


def _take(reply: Reply, part: ollama.ChatResponse) -> None:
    reply.text += part.message.content or ""
    reply.thought += part.message.thinking or ""
    for call in part.message.tool_calls or ():
        reply.add_call(call.function.name, call.function.arguments)
    if part.done:
        reply.finish = part.done_reason or "stop"
        reply.prompt_tokens = part.prompt_eval_count or 0
        reply.answer_tokens = part.eval_count or 0


def _message(turn: Turn) -> Mapping[str, Any]:
    if turn.result is not None:
        return {"role": "tool", "tool_name": turn.result.name, "content": turn.result_text}
    calls = [{"function": {"name": call.name or "", "arguments": dict(call.args or {})}} for call in turn.calls]
    return {"role": turn.role, "content": turn.text} | ({"tool_calls": calls} if calls else {})
