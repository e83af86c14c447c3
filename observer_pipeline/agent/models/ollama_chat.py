"""The agent on a language model served by Ollama, through Ollama's own client."""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import ollama
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from pydantic import ValidationError

from observer_pipeline.agent.models.chat_turns import ModelError, Reply, Turn, tools_of, turns_of

DEFAULT_HOST = "http://127.0.0.1:11434"
CONTEXT_TOKENS = 8192
"""Ollama's own default of 4,096 cuts the beginning off a run with six tool results, without a word."""


def ollama_host() -> str:
    """The server's address: `OLLAMA_HOST`, as Ollama's own programs read it, else loopback."""
    host = os.environ.get("OLLAMA_HOST") or DEFAULT_HOST
    return host if "://" in host else f"http://{host}"


def installed_models(host: str, *, timeout_s: float = 2.0) -> list[str]:
    """Names of the models that the server has, sorted.

    Raises:
        ModelError: nobody answers, or not as Ollama does.
    """
    with _explained("", host, timeout_s):
        return sorted(str(model.model) for model in ollama.Client(host=host, timeout=timeout_s).list().models)


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
        with _explained(self.model, host, self.timeout_s):
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


@contextmanager
def _explained(model: str, host: str, timeout_s: float):
    """Turn what the client raises into one line with the mend."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise ModelError(
            f"{model or 'Ollama'} at {host} did not answer within {timeout_s:g} s; try a smaller model or more time"
        ) from error
    except (ConnectionError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelError(f"no answer from Ollama at {host}; start it ('ollama serve') or set OLLAMA_HOST") from error
    except ollama.ResponseError as error:
        said = " ".join(str(error.error).split())
        if error.status_code == 404 and "not found" in said:
            raise ModelError(f"Ollama has no model {model}; run 'ollama pull {model}'") from error
        if "does not support tools" in said:
            raise ModelError(f"{model} cannot call tools; choose a model that can, such as qwen2.5:7b") from error
        raise ModelError(f"Ollama at {host} refused the request: {said[:300]}; see its log") from error
    except (ValidationError, json.JSONDecodeError) as error:
        raise ModelError(f"what answers at {host} does not speak as Ollama does; mend OLLAMA_HOST") from error
