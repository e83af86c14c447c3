"""One run of the agent: an ADK `LlmAgent` with its tools over one question's paragraphs, recorded step by step."""

import inspect
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.events import Event
from google.adk.models import BaseLlm
from google.adk.runners import InMemoryRunner
from google.adk.sessions import Session
from google.genai import types

from observer_core.traces.evidence import evidence_texts, is_error_result, result_text
from observer_core.traces.trace import ABSENT, ToolCall
from observer_pipeline.agent.answers import clean_answer, is_call_as_text
from observer_pipeline.agent.tools import Toolbox
from observer_pipeline.agent.tracing import run_trace

APP_NAME = "observer_agent"
AGENT_NAME = "researcher"
PREVIEW_CHARS = 1000
INSTRUCTION = """Answer the user's question from the paragraphs your tools return, never from memory.
`search` finds paragraphs by words, `lookup` opens one by its title. Questions need facts from several paragraphs:
search for one after the other. You have {calls} tool calls. When you know the answer, reply with the answer alone, as
short as possible: a name, a date, a number, yes or no."""

StopReason = Literal["answered", "tool_budget", "step_budget", "no_answer", "call_as_text"]
Odd = Literal["unknown_tool", "missing_argument", "call_as_text", "empty_reply", "repeated_call"]
REPEATS = 3
"""The same call this often in one run is odd: a loop."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Hard limits of a run: tool calls (the tools refuse further ones) and model calls (the run ends)."""

    tool_calls: int = 6
    steps: int = 10


@dataclass(slots=True)
class RunRecord:
    """What a run did, as its spans tell it: `answer` is the raw text, `steps` counts model calls.

    `odd` names what the model did that no model should, each once, in the order in which it was first seen.
    """

    trace_id: str
    question: str
    calls: list[ToolCall] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    answer: str = ""
    stop_reason: StopReason = "no_answer"
    steps: int = 0
    latency_ms: float = 0.0
    odd: list[Odd] = field(default_factory=list)

    @property
    def cleaned(self) -> str:
        """The answer inside the raw text; none where the text is a tool call written out."""
        return "" if self.stop_reason == "call_as_text" else clean_answer(self.answer)


def build_agent(model: BaseLlm, toolbox: Toolbox) -> LlmAgent:
    """The ADK agent over one toolbox."""
    return LlmAgent(
        name=AGENT_NAME,
        model=model,
        description="Answers questions that need facts from several paragraphs.",
        instruction=INSTRUCTION.format(calls=toolbox.max_calls),
        tools=list(toolbox.functions()),
    )


async def run_agent(
    question: str,
    *,
    model: BaseLlm,
    toolbox: Toolbox,
    budget: Budget,
    history: Sequence[tuple[str, str]] = (),
    seed: str | None = None,
) -> RunRecord:
    """Ask one question in a trace of its own.

    Odd behaviour of the model (an unknown tool, a missing argument, an empty reply, an endless loop) is part of the
    record; an exception out of the model itself is not caught.

    Args:
        history: earlier (user, agent) turns of the chat; they belong to other traces.
        seed: makes all ids of the trace, and the times inside its values, from this instead of at random.
    """
    runner = InMemoryRunner(agent=build_agent(model, toolbox), app_name=APP_NAME)
    message = types.Content(role="user", parts=[types.Part(text=question)])
    started = time.perf_counter()
    with run_trace(seed) as trace_id:
        session = await runner.session_service.create_session(app_name=APP_NAME, user_id="user")
        await _remember(runner, session, history)
        record = RunRecord(trace_id, question)
        recorder = _Recorder(record, {tool.__name__: _required(tool) for tool in toolbox.functions()})
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
        if "call_as_text" in record.odd:
            record.stop_reason = "call_as_text"
    return record


async def _remember(runner: InMemoryRunner, session: Session, history: Sequence[tuple[str, str]]) -> None:
    """Put earlier turns into the session, as if they had been said in it."""
    for asked, answered in history:
        for author, role, text in (("user", "user", asked), (AGENT_NAME, "model", answered)):
            content = types.Content(role=role, parts=[types.Part(text=text)])
            await runner.session_service.append_event(session, Event(author=author, content=content))


def _required(tool: Any) -> frozenset[str]:
    return frozenset(inspect.signature(tool).parameters)


@dataclass(slots=True)
class _Recorder:
    """Fills a record from ADK's events."""

    record: RunRecord
    required: dict[str, frozenset[str]]
    open_calls: dict[str, ToolCall] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)

    def take(self, event: Event) -> None:
        parts = (event.content.parts if event.content else None) or []
        if event.author == AGENT_NAME and not any(part.function_response for part in parts):
            # ADK reports the exhausted step budget as an event of its own, which is no model call; a stream's pieces
            # come again as a whole.
            spent = event.error_code == LlmCallsLimitExceededError.__name__
            self.record.steps += not spent and not event.partial
            says = any((part.text or "").strip() or part.function_call for part in parts)
            if not spent and not event.partial and not says:
                self._note("empty_reply")
        for part in parts:
            if part.function_call is not None:
                self._call(part.function_call)
            elif part.function_response is not None:
                self._response(part.function_response)
        if event.is_final_response():
            text = "\n".join(part.text for part in parts if part.text and not part.thought)
            self.record.answer = text or self.record.answer
            if is_call_as_text(text, set(self.required)):
                self._note("call_as_text")

    def _note(self, odd: Odd) -> None:
        if odd not in self.record.odd:
            self.record.odd.append(odd)

    def _call(self, call: types.FunctionCall) -> None:
        # Spans hold no empty arguments, so a call without any has none here either.
        recorded = ToolCall(call.name or "", args=dict(call.args) if call.args else ABSENT)
        self.record.calls.append(recorded)
        if recorded.name not in self.required:
            self._note("unknown_tool")
        elif not self.required[recorded.name] <= (call.args or {}).keys():
            self._note("missing_argument")
        key = f"{recorded.name}:{recorded.args!r}"
        self.made[key] += 1
        if self.made[key] == REPEATS:
            self._note("repeated_call")
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
