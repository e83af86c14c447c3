"""The offline model: a rule-based agent behind ADK's `BaseLlm` that plans, searches, reads and answers.

It sees what any model sees (the conversation and the declared tools) and nothing else. A model call is stateless, so
every call replays the conversation's results into a fresh `Solver` and takes the next move.
"""

import random
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types

from observer_pipeline.agent.models.reading import understand
from observer_pipeline.agent.models.solver import Solver
from observer_pipeline.agent.models.temper import Skill, Temper
from observer_pipeline.agent.models.wording import said_before, worded


class OfflineLlm(BaseLlm):
    """The offline model for ADK; the same conversation always gets the same reply for a `seed`."""

    model: str = "offline"
    skill: Skill = "strong"
    seed: int = 0
    errs: bool = True

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield exactly one reply: a tool call, or the answer."""
        question, results = conversation(llm_request.contents)
        tools = {d.name for tool in _tools(llm_request) for d in tool.function_declarations or []}
        parts = self._reply(question, results, tools)
        read_chars = sum(len(str(content)) for content in llm_request.contents)
        written = sum(len(str(part.text or part.function_call)) for part in parts)
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=read_chars // 4,
            candidates_token_count=max(1, written // 4),
            total_token_count=read_chars // 4 + max(1, written // 4),
        )
        yield LlmResponse(
            content=types.Content(role="model", parts=parts),
            usage_metadata=usage,
            finish_reason=types.FinishReason.STOP,
            model_version=self.model,
        )

    def _reply(self, question: str, results: list[dict[str, Any]], tools: set[str | None]) -> list[types.Part]:
        rng = random.Random(f"{self.seed}:{self.skill}:{question}")
        manner = random.Random(f"manner:{self.seed}:{question}:{len(results)}")
        temper = Temper.draw(rng, self.skill)
        solver = Solver(understand(question), temper if self.errs else replace(temper, mistake=None), rng)
        moves = solver.moves()
        try:
            call = next(moves)
            for result in results:
                call = moves.send(result)
        except StopIteration as end:
            return [types.Part(text=worded(str(end.value), manner))]
        if call[0] not in tools:  # nothing can be called any more: answer from what was read
            return [types.Part(text=worded(solver.half_way or solver.last_resort(), manner))]
        name, args = call
        thought = said_before(name, args, manner)
        said = [types.Part(text=thought)] if thought else []
        return [*said, types.Part(function_call=types.FunctionCall(name=name, args=args))]


def conversation(contents: list[types.Content]) -> tuple[str, list[dict[str, Any]]]:
    """The latest question of a conversation and the tool results since."""
    question, results = "", []
    for content in contents:
        for part in content.parts or []:
            if part.function_response is not None:
                results.append(dict(part.function_response.response or {}))
            elif content.role == "user" and part.text:
                question, results = part.text, []
    return question.strip(), results


def _tools(llm_request: LlmRequest) -> list[types.Tool]:
    tools = (llm_request.config.tools if llm_request.config else None) or []
    return [tool for tool in tools if isinstance(tool, types.Tool)]
