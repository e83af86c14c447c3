"""Models that misbehave: each wraps another model and changes what it sees or says.

The spans are written from the request as ADK made it and from the reply as it came out here, so they show the user's
own question and a reply as any model could give it.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator

from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types

from observer_pipeline.agent.answers import clean_answer


class EarlyStop(BaseLlm):
    """From `after` tool results on, its tools are taken away: it must answer with what it has read."""

    inner: BaseLlm
    after: int

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Pass the request on, without tools once enough results have come back."""
        _, turn = _split(llm_request.contents)
        if sum(map(_is_result, turn)) >= self.after and llm_request.config:
            config = llm_request.config.model_copy(update={"tools": None})
            llm_request = llm_request.model_copy(update={"config": config})
        async for response in self.inner.generate_content_async(llm_request, stream):
            yield response


class Misreading(BaseLlm):
    """Takes the user's latest question for `question`."""

    inner: BaseLlm
    question: str

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Pass the request on with the other question."""
        before, turn = _split(llm_request.contents)
        asked = types.Content(role="user", parts=[types.Part(text=self.question)])
        changed = llm_request.model_copy(update={"contents": [*before, asked, *turn[1:]]})
        async for response in self.inner.generate_content_async(changed, stream):
            yield response


class Forgetful(BaseLlm):
    """Sees the question and the last `keep` tool calls with their results, and nothing else."""

    inner: BaseLlm
    keep: int

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Pass on what is still remembered."""
        _, turn = _split(llm_request.contents)
        results = [place for place, content in enumerate(turn) if _is_result(content)]
        # A result goes with the call before it.
        first = results[-self.keep] - 1 if self.keep and len(results) > self.keep else 1
        rest = turn[first:] if self.keep else []
        changed = llm_request.model_copy(update={"contents": [*turn[:1], *rest]})
        async for response in self.inner.generate_content_async(changed, stream):
            yield response


class _Replying(BaseLlm):
    """Changes the words of a reply that answers, and leaves tool calls alone."""

    inner: BaseLlm

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Pass on the inner model's replies, answers changed."""
        async for response in self.inner.generate_content_async(llm_request, stream):
            parts = (response.content.parts if response.content else None) or []
            if not response.partial and not any(part.function_call for part in parts):
                said = "\n".join(part.text for part in parts if part.text)
                content = types.Content(role="model", parts=[types.Part(text=self._instead(said, llm_request))])
                response = response.model_copy(update={"content": content})
            yield response

    @abstractmethod
    def _instead(self, said: str, llm_request: LlmRequest) -> str:
        """The reply that stands in the place of `said`."""


class Talkative(_Replying):
    """Says `talk` before its answer; without one, its own reply alone."""

    talk: str

    def _instead(self, said: str, llm_request: LlmRequest) -> str:  # noqa: ARG002
        own = clean_answer(said)
        return f"{self.talk} The answer is {own}." if own and not own.startswith("I ") else said


class OtherAnswer(_Replying):
    """Does its work, and puts `answer` in the place of its own.

    Attributes:
        whole: replace the whole reply, not only the answer within its wording.
        once_read: only if this text stood in a tool's result.
    """

    answer: str
    whole: bool = False
    once_read: str | None = None

    def _instead(self, said: str, llm_request: LlmRequest) -> str:
        if self.once_read is not None and not _has_read(llm_request, self.once_read):
            return said
        own = clean_answer(said)
        return self.answer if self.whole or not own else said.replace(own, self.answer, 1)


def _split(contents: list[types.Content]) -> tuple[list[types.Content], list[types.Content]]:
    """What came before the latest question, and the turn that begins with it."""
    asked = [i for i, c in enumerate(contents) if c.role == "user" and any(part.text for part in c.parts or [])]
    place = asked[-1] if asked else 0
    return contents[:place], contents[place:]


def _is_result(content: types.Content) -> bool:
    return any(part.function_response is not None for part in content.parts or [])


def _has_read(llm_request: LlmRequest, text: str) -> bool:
    return any(
        part.function_response is not None and text in str(part.function_response.response)
        for content in llm_request.contents
        for part in content.parts or []
    )
