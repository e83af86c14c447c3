"""The agent's spans, attribute by attribute, under both of ADK's telemetry schemas: what is not named here must not be.

Every attribute is popped as it is checked, so that a new one (of ADK, of the instrumentation, or of ours) fails the test.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from observer_pipeline.agent.runner import AGENT_NAME, APP_NAME, INSTRUCTION

DESCRIPTION = "Answers questions that need facts from several paragraphs."
SAID = [("search", {"query": "Rhine"}), ("lookup", {"title": "Danube"})]
RESULTS = [
    {"results": [{"title": "Rhine", "text": "The Rhine is long."}]},
    {"error": "There is no paragraph titled 'Danube'. Try search."},
]
OPENINFERENCE = "openinference.instrumentation.google_adk"
ADK = "gcp.vertex.agent"


class Span:
    """A span as a dict to pop from."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.name, self.id, self.parent, self.trace = (raw[key] for key in ("name", "id", "parent", "trace"))
        self.scope, self.status, self.kind = raw["scope"], raw["status"], raw["kind"]
        self.resource = raw["resource"]
        self.events = raw["events"]
        self.left = raw["attributes"]

    def pop(self, **expected: Any) -> None:
        """Attributes with these values; `__` stands for a dot."""
        for name, value in expected.items():
            key = name.replace("__", ".")
            assert self.left.pop(key) == value, key

    def pop_json(self, key: str) -> Any:
        return json.loads(self.left.pop(key))

    def pop_id(self, key: str, prefix: str = "") -> str:
        value = self.left.pop(key)
        assert value.startswith(prefix)
        assert len(value) == len(prefix) + 36
        return value

    def is_empty(self) -> None:
        assert self.left == {}, self.name


@pytest.fixture(scope="module", params=["1", "2"])
def run(request) -> tuple[str, list[Span]]:
    script = Path(__file__).with_name("span_run.py")
    done = subprocess.run([sys.executable, str(script), request.param], capture_output=True, text=True, check=True)
    *lines, last = [json.loads(line) for line in done.stdout.splitlines()]
    spans = [Span(line) for line in lines]
    assert last["answer"] == "Rhine"
    assert {span.trace for span in spans} == {last["trace_id"]}
    return request.param, spans


def test_every_attribute_of_every_span(run: tuple[str, list[Span]]) -> None:
    schema, spans = run
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
        assert span.kind == "INTERNAL"
        assert span.events == []
        resource = dict(span.resource)
        assert resource.pop("service.name") == "spans"
        assert resource.pop("service.instance.id") == "spans-1"
        assert resource.pop("openinference.project.name") == "p"
        assert resource.pop("telemetry.sdk.language") == "python"
        assert resource.pop("telemetry.sdk.name") == "opentelemetry"
        assert resource.pop("telemetry.sdk.version").startswith("1.")
        assert resource == {}
    [root] = by_name.pop(f"invocation [{APP_NAME}]")
    [agent_run] = by_name.pop(f"agent_run [{AGENT_NAME}]")
    [agent] = by_name.pop(f"invoke_agent {AGENT_NAME}")
    session = _root(root)
    _agent_run(agent_run, session)
    tools = [by_name.pop("execute_tool search")[0], by_name.pop("execute_tool lookup")[0]]
    for place, tool in enumerate(tools):
        _tool(tool, place, session, schema)
    if schema == "1":
        [bare] = by_name.pop("invocation")
        bare.is_empty()
        assert bare.scope == ADK
        _agent(agent, session)
        calls = by_name.pop("call_llm")
        assert len(calls) == 3
        for place, call in enumerate(calls):
            assert call.scope == ADK
            _legacy(call, session)
            _llm(call, place)
            call.is_empty()
            assert call.parent == agent.id
    else:
        [workflow] = by_name.pop(f"invoke_workflow {AGENT_NAME}")
        workflow.pop(gen_ai__operation__name="invoke_workflow", gen_ai__workflow__name=AGENT_NAME)
        workflow.pop(gen_ai__conversation__id=session, session__id=session, user__id="user")
        workflow.pop(openinference__span__kind="CHAIN")
        workflow.is_empty()
        _overwritten_agent(agent, session)
    assert by_name == {}
    assert root.parent is None
    assert {tool.parent for tool in tools} == {agent.id}


def _final_event(span: Span) -> None:
    """The root and the agent end with ADK's last event, as JSON."""
    event = span.pop_json("output.value")
    assert event.pop("content") == {"parts": [{"text": "Rhine"}], "role": "model"}
    assert event.pop("model_version") == "scripted-1"
    assert event.pop("finish_reason") == "STOP"
    assert event.pop("author") == AGENT_NAME
    span.pop(output__mime_type="application/json")


def _root(span: Span) -> str:
    session = span.pop_id("session.id")
    asked = span.pop_json("input.value")
    assert asked.pop("new_message") == {"parts": [{"text": "Which river?"}], "role": "user"}
    assert (asked.pop("user_id"), asked.pop("session_id")) == ("user", session)
    span.pop(input__mime_type="application/json", user__id="user", openinference__span__kind="CHAIN")
    _final_event(span)
    span.is_empty()
    assert (span.scope, span.status) == (OPENINFERENCE, "OK")
    return session


def _agent_run(span: Span, session: str) -> None:
    span.pop(agent__name=AGENT_NAME, gen_ai__agent__description=DESCRIPTION, session__id=session, user__id="user")
    span.pop(openinference__span__kind="AGENT")
    _final_event(span)
    span.is_empty()


def _agent(span: Span, session: str) -> None:
    span.pop(gen_ai__operation__name="invoke_agent", gen_ai__agent__description=DESCRIPTION)
    span.pop(gen_ai__agent__name=AGENT_NAME, gen_ai__conversation__id=session)
    span.is_empty()


def _tool(span: Span, place: int, session: str, schema: str) -> None:
    name, args = SAID[place]
    failed = "error" in RESULTS[place]
    span.pop(session__id=session, user__id="user", openinference__span__kind="TOOL")
    span.pop(gen_ai__operation__name="execute_tool", gen_ai__tool__name=name, gen_ai__tool__type="FunctionTool")
    span.pop(gen_ai__agent__name=AGENT_NAME, tool__name=name)
    for key in ("gen_ai.tool.description", "tool.description"):
        assert "Args:" in span.left.pop(key)
    call_id = span.pop_id("gen_ai.tool.call.id", "adk-")
    span.pop(tool__id=call_id)
    span.pop_id("gcp.vertex.agent.event_id")
    if schema == "1":
        span.pop(gcp__vertex__agent__llm_request="{}", gcp__vertex__agent__llm_response="{}")
        assert span.pop_json("gcp.vertex.agent.tool_call_args") == args
        assert span.pop_json("gcp.vertex.agent.tool_response") == RESULTS[place]
    else:
        assert span.pop_json("gen_ai.tool.call.arguments") == args
        assert span.pop_json("gen_ai.tool.call.result") == RESULTS[place]
    assert span.pop_json("tool.parameters") == args
    assert span.pop_json("input.value") == args
    assert span.pop_json("output.value") == {"id": call_id, "name": name, "response": RESULTS[place]}
    span.pop(input__mime_type="application/json", output__mime_type="application/json")
    if failed:
        span.pop(error__type="TOOL_ERROR")
    assert (span.scope, span.status) == (OPENINFERENCE, "ERROR" if failed else "OK")
    span.is_empty()


def _legacy(span: Span, session: str) -> None:
    """What ADK itself writes on a model call under schema 1."""
    span.pop(gen_ai__operation__name="generate_content", gen_ai__agent__name=AGENT_NAME)
    span.pop(gen_ai__conversation__id=session, gen_ai__system="gcp.vertex.agent", gen_ai__request__model="scripted")
    span.pop(gcp__vertex__agent__session_id=session)
    span.pop_id("gcp.vertex.agent.invocation_id", "e-")
    span.pop_id("gcp.vertex.agent.event_id")
    request = span.pop_json("gcp.vertex.agent.llm_request")
    assert request["contents"][0] == {"parts": [{"text": "Which river?"}], "role": "user"}
    assert span.pop_json("gcp.vertex.agent.llm_response")["model_version"] == "scripted-1"
    _usage(span)


def _usage(span: Span) -> None:
    span.pop(gen_ai__usage__input_tokens=10, gen_ai__usage__output_tokens=5, gen_ai__response__finish_reasons=["stop"])


def _llm(span: Span, place: int) -> None:
    """What OpenInference writes on the model call with `place` results before it."""
    span.pop(openinference__span__kind="LLM", llm__provider="google", llm__model_name="scripted")
    span.pop(llm__token_count__total=15, llm__token_count__prompt=10, llm__token_count__completion=5)
    assert len(span.pop_json("input.value")["contents"]) == 1 + 2 * place
    assert span.pop_json("output.value")["finish_reason"] == "STOP"
    span.pop(input__mime_type="application/json", output__mime_type="application/json")
    assert [span.pop_json(f"llm.tools.{i}.tool.json_schema")["name"] for i in (0, 1)] == ["search", "lookup"]
    instruction = INSTRUCTION.format(calls=6)
    assert instruction in span.pop_json("llm.invocation_parameters")["system_instruction"]
    inputs = "llm.input_messages"
    assert span.left.pop(f"{inputs}.0.message.role") == "system"
    assert instruction in span.left.pop(f"{inputs}.0.message.content")
    _text(span, f"{inputs}.1", "user", "Which river?")
    for done in range(place):
        _call(span, f"{inputs}.{2 + 2 * done}", done)
        answer = f"{inputs}.{3 + 2 * done}.message"
        assert span.left.pop(f"{answer}.role") == "tool"
        assert span.left.pop(f"{answer}.name") == SAID[done][0]
        assert span.pop_json(f"{answer}.content") == RESULTS[done]
    if place < len(SAID):
        _call(span, "llm.output_messages.0", place)
    else:
        _text(span, "llm.output_messages.0", "model", "Rhine")
    assert span.status == "OK"


def _text(span: Span, at: str, role: str, text: str) -> None:
    assert span.left.pop(f"{at}.message.role") == role
    assert span.left.pop(f"{at}.message.contents.0.message_content.text") == text
    assert span.left.pop(f"{at}.message.contents.0.message_content.type") == "text"


def _call(span: Span, at: str, place: int) -> None:
    name, args = SAID[place]
    assert span.left.pop(f"{at}.message.role") == "model"
    assert span.left.pop(f"{at}.message.tool_calls.0.tool_call.function.name") == name
    assert span.pop_json(f"{at}.message.tool_calls.0.tool_call.function.arguments") == args


def _overwritten_agent(span: Span, session: str) -> None:
    """Schema 2 has no span for a model call, so OpenInference writes all of them onto the agent's: the last one stays.

    That is why the agent runs under schema 1; once this test fails here, that can be thought over.
    """
    span.pop(gen_ai__agent__description=DESCRIPTION, gen_ai__operation__name="generate_content")
    span.pop(gen_ai__request__model="scripted", gen_ai__agent__name=AGENT_NAME, gen_ai__conversation__id=session)
    span.pop(gen_ai__provider__name="gcp.gemini")
    span.pop_id("gcp.vertex.agent.invocation_id", "e-")
    span.pop_id("gcp.vertex.agent.event_id")
    _usage(span)
    messages = span.pop_json("gen_ai.input.messages")
    assert messages[0] == {"role": "user", "parts": [{"content": "Which river?", "type": "text"}]}
    assert len(messages) == 5
    assert INSTRUCTION.format(calls=6) in span.pop_json("gen_ai.system_instructions")[0]["content"]
    assert [tool["name"] for tool in span.pop_json("gen_ai.tool.definitions")] == ["search", "lookup"]
    [last] = span.pop_json("gen_ai.output.messages")
    assert last["parts"] == [{"content": "Rhine", "type": "text"}]
    stale = "llm.output_messages.0.message.tool_calls.0.tool_call.function"
    assert span.left.pop(f"{stale}.name") == "lookup"
    assert span.pop_json(f"{stale}.arguments") == SAID[1][1]
    _llm(span, 2)
    span.is_empty()
