"""The agent on any server that speaks OpenAI's chat completions: vLLM, llama.cpp, LM Studio, hosted ones.

Over httpx, which the service needs anyway: the `openai` package would add a dozen more for one POST, and it refuses
answers that local servers do give (a call without an id, a choice without a finish reason).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
from google.adk.models import BaseLlm, LlmRequest, LlmResponse

from observer_pipeline.agent.models.chat_turns import Reply, Turn, tools_of, turns_of
from observer_pipeline.agent.models.errors import ModelError

_TRIES = 4
_LONGEST_WAIT_S = 30.0


class OpenAiChatLlm(BaseLlm):
    """A model behind `/chat/completions` for ADK.

    Attributes:
        model: its name there.
        base_url: the address with its version, such as `http://127.0.0.1:8000/v1`.
        api_key: sent as a bearer token where there is one.
        seed: of the sampling, which is greedy besides.
        timeout_s: how long one reply may take.
    """

    base_url: str
    api_key: str | None = None
    seed: int = 0
    timeout_s: float = 300.0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one reply; before it, when `stream`, its pieces.

        Raises:
            ModelError: no server, no such model, no right to it, no reply in time, or one broken off.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [_message(turn) for turn in turns_of(llm_request)],
            "temperature": 0,
            "seed": self.seed,
            "stream": stream,
        }
        tools = tools_of(llm_request)
        if tools:
            body["tools"] = tools
        if stream:
            body["stream_options"] = {"include_usage": True}
        reply = Reply(self.model)
        open_calls: dict[int, dict[str, str]] = {}
        async for part in self._parts(body):
            for choice in part.get("choices") or []:
                said = choice.get("delta") or choice.get("message") or {}
                text = said.get("content") or ""
                reply.text += text
                reply.thought += said.get("reasoning_content") or ""
                reply.finish = choice.get("finish_reason") or reply.finish
                for place, call in enumerate(said.get("tool_calls") or []):
                    _join(open_calls.setdefault(call.get("index", place), {}), call)
                if stream and text:
                    yield reply.piece(text)
            usage = part.get("usage") or {}
            reply.prompt_tokens = usage.get("prompt_tokens") or reply.prompt_tokens
            reply.answer_tokens = usage.get("completion_tokens") or reply.answer_tokens
        for _, call in sorted(open_calls.items()):
            reply.add_call(call.get("name", ""), call.get("arguments", ""), call.get("id"))
        yield reply.whole()

    async def _parts(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The JSON objects of the answer: one, or those of the stream; a busy server is asked again."""
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            async with httpx.AsyncClient(timeout=self.timeout_s, headers=headers) as client:
                for attempt in range(_TRIES):
                    async with client.stream("POST", url, json=body) as answer:
                        if answer.status_code < 400:
                            async for part in _objects(answer):
                                if part.get("error"):  # in the middle of a stream, after status 200
                                    said = _problem(json.dumps(part).encode())
                                    raise ModelError(f"{url} broke off its answer: {said[:300]}; see the server's log")
                                yield part
                            return
                        said = _problem(await answer.aread())
                        busy = answer.status_code == 429 or answer.status_code >= 500
                        wait = _wait_s(answer, attempt)
                    if not busy or attempt + 1 == _TRIES:
                        raise self._refused(answer.status_code, url, said)
                    await asyncio.sleep(wait)
        except httpx.TimeoutException as error:
            raise ModelError(
                f"{self.model} at {url} did not answer within {self.timeout_s:g} s; give it more"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ModelError(f"no answer from {url} ({error}); start the server or mend the URL") from error
        except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, RecursionError) as error:
            raise ModelError(f"what {url} answers is not JSON of chat completions; mend the URL") from error

    def _refused(self, status: int, url: str, said: str) -> ModelError:
        mend = {
            401: "set OBSERVER_AGENT_API_KEY",
            403: "set OBSERVER_AGENT_API_KEY to a key that may use this model",
            404: f"check that the server has {self.model} and that the URL ends with its version (…/v1)",
            429: "wait, or use fewer workers",
        }.get(status, "see the server's log")
        return ModelError(f"{url} refused the request with status {status}: {said[:300]}; {mend}")


async def _objects(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        yield json.loads(await answer.aread())
        return
    async for line in answer.aiter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data and data != "[DONE]":
            yield json.loads(data)


def _join(call: dict[str, str], piece: dict[str, Any]) -> None:
    """Add a piece of a streamed tool call; id and name come once, arguments in parts."""
    function = piece.get("function") or {}
    call["id"] = piece.get("id") or call.get("id") or ""
    call["name"] = call.get("name", "") + (function.get("name") or "")
    arguments = function.get("arguments") or ""
    call["arguments"] = call.get("arguments", "") + (arguments if isinstance(arguments, str) else json.dumps(arguments))


def _message(turn: Turn) -> dict[str, Any]:
    if turn.result is not None:
        return {"role": "tool", "tool_call_id": turn.result.id or "", "content": turn.result_text}
    calls = [
        {
            "id": call.id or "",
            "type": "function",
            "function": {"name": call.name or "", "arguments": json.dumps(call.args or {}, ensure_ascii=False)},
        }
        for call in turn.calls
    ]
    return {"role": turn.role, "content": turn.text} | ({"tool_calls": calls} if calls else {})


def _problem(body: bytes) -> str:
    """What an error's body says, on one line."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    error = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(said or text).split())


def _wait_s(answer: httpx.Response, attempt: int) -> float:
    asked = answer.headers.get("retry-after", "")
    return min(_LONGEST_WAIT_S, float(asked) if asked.replace(".", "", 1).isdigit() else 0.5 * 2**attempt)
