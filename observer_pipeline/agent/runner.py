"""One run of the agent: an ADK `LlmAgent` with its tools over one question's paragraphs, recorded step by step."""

import re
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.events import Event
from google.adk.models import BaseLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from observer_core.traces.evidence import evidence_texts, is_error_result, result_text
from observer_core.traces.trace import ABSENT, ToolCall
from observer_pipeline.agent.tools import Toolbox
from observer_pipeline.agent.tracing import run_trace

APP_NAME = "observer_agent"
AGENT_NAME = "researcher"
PREVIEW_CHARS = 1000
INSTRUCTION = """Answer the user's question from the paragraphs your tools return, never from memory.
`search` finds paragraphs by words, `lookup` opens one by its title. Questions need facts from several paragraphs:
search for one after the other. You have {calls} tool calls. When you know the answer, reply with the answer alone, as
short as possible: a name, a date, a number, yes or no."""

StopReason = Literal["answered", "tool_budget", "step_budget", "no_answer"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Hard limits of a run: tool calls (the tools refuse further ones) and model calls (the run ends)."""

    tool_calls: int = 6
    steps: int = 10


@dataclass(slots=True)
class RunRecord:
    """What a run did, as its spans tell it: `answer` is the raw text, `steps` counts model calls."""

    trace_id: str
    question: str
    calls: list[ToolCall] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    answer: str = ""
    stop_reason: StopReason = "no_answer"
    steps: int = 0
    latency_ms: float = 0.0

    @property
    def cleaned(self) -> str:
        return clean_answer(self.answer)


def build_agent(model: BaseLlm, toolbox: Toolbox) -> LlmAgent:
    """The ADK agent over one toolbox."""
    return LlmAgent(
        name=AGENT_NAME,
        model=model,
        description="Answers questions that need facts from several paragraphs.",
        instruction=INSTRUCTION.format(calls=toolbox.max_calls),
        tools=list(toolbox.functions()),
    )


async def run_agent(question: str, *, model: BaseLlm, toolbox: Toolbox, budget: Budget) -> RunRecord:
    """Ask one question in a trace of its own.

    Odd behaviour of the model (an unknown tool, a missing argument, an empty reply, an endless loop) is part of the
    record; an exception out of the model itself is not caught.
    """
    runner = InMemoryRunner(agent=build_agent(model, toolbox), app_name=APP_NAME)
    session = await runner.session_service.create_session(app_name=APP_NAME, user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    started = time.perf_counter()
    with run_trace() as trace_id:
        record = RunRecord(trace_id, question)
        recorder = _Recorder(record)
        try:
            async for event in runner.run_async(
                user_id="user",
                session_id=session.id,
                new_message=message,
                run_config=RunConfig(max_llm_calls=budget.steps),
            ):
                recorder.take(event)
        except LlmCallsLimitExceededError:
            record.stop_reason = "step_budget"
    record.latency_ms = round((time.perf_counter() - started) * 1000, 3)
    if record.answer.strip():
        record.stop_reason = "tool_budget" if toolbox.calls > toolbox.max_calls else "answered"
    return record


@dataclass(slots=True)
class _Recorder:
    """Fills a record from ADK's events."""

    record: RunRecord
    open_calls: dict[str, ToolCall] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        parts = (event.content.parts if event.content else None) or []
        if event.author == AGENT_NAME and not any(part.function_response for part in parts):
            # ADK reports the exhausted step budget as an event of its own, which is no model call.
            self.record.steps += event.error_code != LlmCallsLimitExceededError.__name__
        for part in parts:
            if part.function_call is not None:
                self._call(part.function_call)
            elif part.function_response is not None:
                self._response(part.function_response)
        if event.is_final_response():
            text = "\n".join(part.text for part in parts if part.text and not part.thought)
            self.record.answer = text or self.record.answer

    def _call(self, call: types.FunctionCall) -> None:
        # Spans hold no empty arguments, so a call without any has none here either.
        recorded = ToolCall(call.name or "", args=dict(call.args) if call.args else ABSENT)
        self.record.calls.append(recorded)
        if call.id:
            self.open_calls[call.id] = recorded

    def _response(self, response: types.FunctionResponse) -> None:
        result: dict[str, Any] = dict(response.response or {})
        call = self.open_calls.pop(response.id or "", None)
        if call is not None:
            call.status = "error" if is_error_result(result) else "ok"
            call.result_preview = result_text(result)[:PREVIEW_CHARS]
        for text in evidence_texts(result):
            if text not in self.record.evidence:
                self.record.evidence.append(text)


_LEAD_IN = re.compile(r"^.*?\b(?:final answer|answer)(?: is)?\s*[:=]?\s+(?=\S)", re.IGNORECASE | re.DOTALL)


def clean_answer(text: str) -> str:
    """The answer inside a reply: without lead-in (`The answer is …`, `Answer: …`), markup, quotes and final stop."""
    stripped = re.sub(r"[*_`]{1,3}", "", text).strip()
    if re.search(r"\b(?:answer:|answer is)\s*\S", stripped, re.IGNORECASE):
        stripped = _LEAD_IN.sub("", stripped)
    first = next((line for line in stripped.splitlines() if line.strip()), "")
    return first.strip().strip("\"'“”").rstrip(".").strip()
