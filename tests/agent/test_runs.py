"""Runs through ADK: what is recorded, what the spans say, and odd behaviour of models."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from agent_runs import ask, read_back, run
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types

from observer_pipeline.agent.generate import GenerateOptions
from observer_pipeline.agent.models.offline import OfflineLlm
from observer_pipeline.agent.runner import Budget
from observer_pipeline.agent.world import generate_world

QUESTIONS = list(generate_world(12, seed=21))


class Scripted(BaseLlm):
    """Says its lines in turn, the last one for ever; None is a reply without content."""

    model: str = "scripted"
    lines: list[Any]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        turn = sum(content.role == "model" for content in llm_request.contents)
        line = self.lines[min(turn, len(self.lines) - 1)]
        content = None if line is None else types.Content(role="model", parts=line)
        yield LlmResponse(content=content, finish_reason=types.FinishReason.STOP)


def call(name: str, **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


def text(said: str) -> types.Part:
    return types.Part(text=said)


def test_what_was_recorded_is_what_the_spans_say(spans) -> None:
    kinds = set()
    for question in QUESTIONS:
        before = len(spans())
        trace, _ = run(question)
        read = read_back(spans()[before:])
        assert read.complete
        assert read.trace.trace_id == trace.trace_id
        assert read.trace.question == trace.question == question.question
        assert read.trace.final_answer == trace.final_answer
        assert read.trace.tool_calls == trace.tool_calls
        assert read.trace.evidence == trace.evidence
        assert read.trace.steps == trace.steps
        assert (read.service, read.project) == ("test-agent", "tests")
        kinds |= read.kinds
        assert [s.name for s in spans()[before:]].count("call_llm") == trace.steps
    assert kinds == {"CHAIN", "AGENT", "LLM", "TOOL"}


@pytest.mark.parametrize(
    ("lines", "calls", "answer", "stop"),
    [
        ([[call("browse", url="x")], [text("Velk")]], [("browse", "error")], "Velk", "answered"),
        ([[call("search")], [text("Velk")]], [("search", "error")], "Velk", "answered"),
        ([[call("search", query="town")], [text("")]], [("search", "ok")], "", "no_answer"),
        ([[call("search", query="town")], None], [("search", "ok")], "", "no_answer"),
        ([[text("search(query='town')")]], [], "search(query='town')", "call_as_text"),
        ([[call("search", query=12)], [text("Velk")]], [("search", "ok")], "Velk", "answered"),
        ([[call("search", query="zzz")], [text("Velk")]], [("search", "ok")], "Velk", "answered"),
        ([[call("search", query="")], [text("Velk")]], [("search", "ok")], "Velk", "answered"),
        (
            [[text("First."), call("search", query="town"), call("lookup", title="Nowhere")], [text("Velk")]],
            [("search", "ok"), ("lookup", "error")],
            "Velk",
            "answered",
        ),
    ],
    ids=[
        "unknown tool",
        "missing argument",
        "empty",
        "no content",
        "call as text",
        "number",
        "no hit",
        "blank",
        "parallel",
    ],
)
def test_odd_behaviour_is_recorded_and_read_back(spans, lines, calls, answer, stop) -> None:
    record = ask(QUESTIONS[0], Scripted(lines=lines))
    assert [(c.name, c.status) for c in record.calls] == calls
    assert (record.answer, record.stop_reason) == (answer, stop)
    read = read_back(spans()).trace
    assert (read.final_answer, read.steps) == (answer, record.steps)
    assert read.tool_calls == record.calls
    assert read.evidence == record.evidence


def test_the_tools_refuse_calls_beyond_the_budget(spans) -> None:
    budget = Budget(tool_calls=2, steps=10)
    lines = [[call("search", query="town")]] * 3 + [[text("Velk")]]
    record = ask(QUESTIONS[0], Scripted(lines=lines), budget=budget)
    assert [c.status for c in record.calls] == ["ok", "ok", "error"]
    assert "budget" in record.calls[2].result_preview
    assert (record.answer, record.stop_reason) == ("Velk", "tool_budget")


def test_an_endless_loop_ends_at_the_step_budget(spans) -> None:
    record = ask(QUESTIONS[0], Scripted(lines=[[call("search", query="town")]]), budget=Budget(tool_calls=3, steps=5))
    assert (record.answer, record.stop_reason, record.steps, len(record.calls)) == ("", "step_budget", 5, 5)
    read = read_back(spans())
    assert (read.trace.final_answer, len(read.trace.tool_calls)) == ("", 5)
    assert "error" in read.statuses


def test_the_offline_model_answers_when_its_tools_refuse(spans) -> None:
    record = ask(QUESTIONS[0], OfflineLlm(), budget=Budget(tool_calls=1))
    assert record.stop_reason in ("answered", "tool_budget")
    assert len(record.calls) <= 2


def test_a_question_nobody_can_parse_still_gets_a_reply(spans) -> None:
    from dataclasses import replace

    for odd in ("?", "what now", "Ω≈ç√ 🤷", "a" * 5000, "Who is who of The The of and or, if Not?"):
        record = ask(replace(QUESTIONS[0], question=odd), OfflineLlm())
        assert record.stop_reason in ("answered", "no_answer", "tool_budget")
        assert read_back(spans()).trace.question
    assert GenerateOptions(1).tool_calls == Budget().tool_calls


def test_importing_the_agent_selects_telemetry_schema_1() -> None:
    """Under schema 2 OpenInference overwrites one span with every model call; ADK reads the variable when it runs."""
    code = (
        "import os, sys; import observer_pipeline.agent; "
        "assert 'google.adk' not in sys.modules; print(os.environ['ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN'])"
    )
    environment = os.environ | {"ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
