"""A model that answers too soon: after some tool results its tools are taken away, as if it thought that it knew."""

from collections.abc import AsyncGenerator

from google.adk.models import BaseLlm, LlmRequest, LlmResponse


class EarlyStop(BaseLlm):
    """Wraps any model; from `after` tool results on it must answer with what it has read."""

    inner: BaseLlm
    after: int

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Pass the request on, without tools once enough results have come back."""
        parts = [part for content in llm_request.contents for part in content.parts or []]
        if sum(part.function_response is not None for part in parts) >= self.after and llm_request.config:
            config = llm_request.config.model_copy(update={"tools": None})
            llm_request = llm_request.model_copy(update={"config": config})
        async for response in self.inner.generate_content_async(llm_request, stream):
            yield response
