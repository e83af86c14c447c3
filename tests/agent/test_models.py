"""The agent on language models, against servers that speak Ollama's and OpenAI's wire formats."""

import asyncio
import random
from dataclasses import replace

import pytest
from agent_runs import ask, read_back
from google.adk.models import LlmRequest
from google.genai import types
from model_servers import OllamaServer, OpenAiServer, Refuse, Say

from observer_core.errors import InputError
from observer_pipeline.agent.answers import is_call_as_text
from observer_pipeline.agent.faults import FAULTS, FaultPlan
from observer_pipeline.agent.faults.behaviour import StopsEarly
from observer_pipeline.agent.generate import GenerateOptions, generate
from observer_pipeline.agent.models.choose import build_model
from observer_pipeline.agent.models.errors import ModelError
from observer_pipeline.agent.models.ollama_chat import OllamaLlm
from observer_pipeline.agent.models.ollama_server import installed_models
from observer_pipeline.agent.models.openai_chat import OpenAiChatLlm
from observer_pipeline.agent.runner import Budget
from observer_pipeline.agent.world import generate_world
from observer_pipeline.doctor import ollama_finding

QUESTION = next(q for q in generate_world(40, seed=21) if q.type == "bridge")
FIRST, SECOND = QUESTION.supporting_titles[:2]
ANSWER = QUESTION.answer
ROUND_TRIP = [
    Say(calls=[("search", {"query": FIRST})]),
    Say("Let me open it.", [("lookup", {"title": SECOND})]),
    ANSWER,
]


def model_of(server: OllamaServer | OpenAiServer, **settings):
    if isinstance(server, OllamaServer):
        return OllamaLlm(model="qwen2.5:7b", host=server.url, **settings)
    return OpenAiChatLlm(model="qwen2.5:7b", base_url=f"{server.url}/v1", **settings)


SERVERS = pytest.mark.parametrize("kind", [OllamaServer, OpenAiServer], ids=["ollama", "openai"])


@SERVERS
def test_a_whole_run_with_tool_calls(spans, kind) -> None:
    with kind(ROUND_TRIP) as server:
        record = ask(QUESTION, model_of(server))
    assert [(c.name, c.args, c.status) for c in record.calls] == [
        ("search", {"query": FIRST}, "ok"), ("lookup", {"title": SECOND}, "ok"),
    ]  # fmt: skip
    assert (record.answer, record.stop_reason, record.steps, record.odd) == (ANSWER, "answered", 3, [])
    read = read_back(spans()).trace
    assert (read.final_answer, read.model, read.steps) == (ANSWER, "qwen2.5:7b", 3)
    assert (read.tool_calls, read.evidence) == (record.calls, record.evidence)
    # What the model was told: the instruction, the question, its own calls and their results.
    last = server.requests[-1]
    assert [m["role"] for m in last["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert last["messages"][1]["content"] == QUESTION.question
    assert FIRST in last["messages"][3]["content"]
    assert {tool["function"]["name"] for tool in last["tools"]} == {"search", "lookup"}
    assert last["tools"][0]["function"]["parameters"]["required"] == ["query"]


@SERVERS
def test_streaming_gives_pieces_and_then_the_whole(kind) -> None:
    request = LlmRequest(contents=[types.Content(role="user", parts=[types.Part(text="Hi?")])])

    async def collect(model):
        return [part async for part in model.generate_content_async(request, stream=True)]

    with kind([Say("One two three", [("search", {"query": "a b c"})])]) as server:
        *pieces, whole = asyncio.run(collect(model_of(server)))
    assert len(pieces) >= 3
    assert all(piece.partial for piece in pieces)
    assert "".join(piece.content.parts[0].text for piece in pieces) == "One two three" == whole.content.parts[0].text
    assert whole.content.parts[1].function_call.args == {"query": "a b c"}
    assert not whole.partial
    usage = whole.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count) == (26, 298, 324)


def test_thoughts_are_kept_apart_and_never_sent_back(spans) -> None:
    with OllamaServer([Say(thinking="Hmm.", calls=[("search", {"query": FIRST})]), ANSWER]) as server:
        record = ask(QUESTION, model_of(server))
    assert record.answer == ANSWER
    assert "Hmm." not in str(server.requests[1]["messages"])


@SERVERS
@pytest.mark.parametrize(
    ("lines", "calls", "answer", "stop", "odd"),
    [
        ([Say(calls=[("browse", {"url": "x"})]), ANSWER], ["error"], ANSWER, "answered", ["unknown_tool"]),
        ([Say(calls=[("search", {})]), ANSWER], ["error"], ANSWER, "answered", ["missing_argument"]),
        ([Say('{"name": "search", "arguments": {"query": "x"}}')], [], None, "call_as_text", ["call_as_text"]),
        ([Say(calls=[("search", {"query": "x"})]), Say("")], ["ok"], "", "no_answer", ["empty_reply"]),
        (
            [Say(calls=[("search", {"query": "x"})])],
            ["ok", "ok", "error", "error"],
            "",
            "step_budget",
            ["repeated_call"],
        ),
        ([Say("It is " + ANSWER, finish="length")], [], "It is " + ANSWER, "answered", []),
        ([Say(" \n ")], [], " \n ", "no_answer", ["empty_reply"]),
        ([Say(calls=[("", {"query": "x"})]), ANSWER], ["error"], ANSWER, "answered", ["unknown_tool"]),
        ([Say(calls=[("search", {"query": "caf\ud83d"})]), ANSWER], ["ok"], ANSWER, "answered", []),
        ([Say("caf\ud83d")], [], "caf?", "answered", []),
    ],
    ids=[
        "unknown tool",
        "missing argument",
        "call as text",
        "empty reply",
        "endless loop",
        "cut reply",
        "blank reply",
        "no name",
        "half a character in a call",
        "half a character",
    ],
)
def test_odd_behaviour_is_recorded(spans, kind, lines, calls, answer, stop, odd) -> None:
    with kind(lines) as server:
        record = ask(QUESTION, model_of(server), budget=Budget(tool_calls=2, steps=4))
    assert [call.status for call in record.calls] == calls
    assert (record.answer, record.stop_reason, record.odd) == (lines[0].text if answer is None else answer, stop, odd)
    assert (record.cleaned == "") == (stop in ("call_as_text", "no_answer", "step_budget"))
    read = read_back(spans()).trace
    assert (read.tool_calls, read.final_answer) == (record.calls, record.answer)


@pytest.mark.parametrize(
    "said",
    ['{"query": "unfinished', '{"query": NaN}', '["x"]', '{"query":' * 2000 + "1" + "}" * 2000],
    ids=["unfinished", "no number", "a list", "too deep"],
)
def test_arguments_that_are_no_json_are_refused_by_the_tool_and_recorded(spans, said) -> None:
    with OpenAiServer([Say(calls=[("search", said)]), ANSWER]) as server:
        record = ask(QUESTION, model_of(server))
    kept = ["x"] if said == '["x"]' else said
    assert (record.calls[0].args, record.calls[0].status) == ({"arguments": kept}, "error")
    assert record.odd == ["missing_argument"]
    assert record.answer == ANSWER


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ('{"name": "search", "arguments": {"query": "x"}}', True),
        ('```json\n{"tool": "lookup", "args": {}}\n```', True),
        ('[{"function": {"name": "search"}}]', True),
        ('<tool_call>\n{"name": "search"}\n</tool_call>', True),
        ("search(query='town')", True),
        ("Thought: hm\nAction: Search[town]", True),
        ("functions.search(query='x')", True),
        ("Search (film)", False),
        ("Tarnholm", False),
        ('{"answer": "Tarnholm"}', False),
        ("I will search for it.", False),
        ("", False),
    ],
)
def test_calls_written_as_text_are_known(text: str, is_call: bool) -> None:
    assert is_call_as_text(text, {"search", "lookup"}) == is_call


@pytest.mark.parametrize(
    ("server", "model", "says"),
    [
        (OllamaServer([ANSWER], models=["llama3.2:3b"]), {}, "Ollama has no model qwen2.5:7b; run 'ollama pull qwen2.5:7b'"),
        (OllamaServer([Refuse(400, {"error": "registry.ollama.ai/library/gemma:2b does not support tools"})]), {}, "cannot call tools"),
        (OllamaServer([Refuse(500, {"error": "model runner has unexpectedly stopped"})]), {}, "refused the request: model runner"),
        (OllamaServer([Refuse(200, b"<html>hello</html>")]), {}, "does not speak as Ollama does"),
        (OllamaServer([ANSWER], delay_s=2), {"timeout_s": 0.2}, "did not answer within 0.2 s"),
        (OpenAiServer([ANSWER], models=["other"]), {}, "status 404: The model `qwen2.5:7b` does not exist."),
        (OpenAiServer([Refuse(401, {"error": {"message": "Incorrect API key provided"}})]), {}, "set OBSERVER_AGENT_API_KEY"),
        (OpenAiServer([Refuse(400, {"detail": "context too long"})]), {}, "status 400: context too long"),
        (OpenAiServer([Refuse(200, b"<html>hello</html>")]), {}, "is not JSON of chat completions"),
        (OpenAiServer([ANSWER], delay_s=2), {"timeout_s": 0.2}, "did not answer within 0.2 s"),
    ],
    ids=["not pulled", "no tools", "crash", "not ollama", "slow", "no model", "no key", "too long", "not openai", "slow "],
)  # fmt: skip
def test_what_is_wrong_with_a_server_is_said_in_one_line(spans, server, model, says) -> None:
    with server, pytest.raises(ModelError) as caught:
        ask(QUESTION, model_of(server, **model))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value)  # the mend
    assert caught.value.exit_code == 1


@SERVERS
def test_a_server_that_is_down_or_goes_away(kind) -> None:
    request = LlmRequest(contents=[types.Content(role="user", parts=[types.Part(text="Hi?")])])

    async def collect(model):
        return [part async for part in model.generate_content_async(request, stream=True)]

    with kind(["One two three"], break_stream=True) as server, pytest.raises(ModelError, match="no answer from"):
        asyncio.run(collect(model_of(server)))
    with pytest.raises(ModelError, match="start"):
        asyncio.run(collect(model_of(server)))


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (OllamaServer, b'{"error":"llama runner has terminated: exit status 2"}\n'),
        (OpenAiServer, b'data: {"error": {"message": "engine died: exit status 2", "code": 500}}\n\n'),
    ],
    ids=["ollama", "openai"],
)
def test_an_error_in_the_middle_of_a_stream(monkeypatch: pytest.MonkeyPatch, kind, line: bytes) -> None:
    """The server has answered 200 by then and sends the error as one more line."""
    whole = kind.pieces
    monkeypatch.setattr(kind, "pieces", lambda self, body, say: [*whole(self, body, say)[:3], line])
    request = LlmRequest(contents=[types.Content(role="user", parts=[types.Part(text="Hi?")])])

    async def collect(model):
        return [part async for part in model.generate_content_async(request, stream=True)]

    with kind(["One two three"]) as server, pytest.raises(ModelError, match="exit status 2; see"):
        asyncio.run(collect(model_of(server)))


def test_a_busy_server_is_asked_again(spans) -> None:
    busy = Refuse(429, {"error": {"message": "rate limit"}}, {"retry-after": "0.05"})
    with OpenAiServer([busy, busy, ANSWER]) as server:
        assert ask(QUESTION, model_of(server, api_key="k")).answer == ANSWER
    assert [request["_authorization"] for request in server.requests] == ["Bearer k"] * 3


def test_models_by_name(monkeypatch) -> None:
    assert build_model("offline-weak").skill == "weak"
    made = build_model("openai:Qwen/Qwen3-8B@http://127.0.0.1:8000/v1", seed=3)
    assert (made.model, made.base_url, made.seed) == ("Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1", 3)
    assert build_model("ollama:qwen2.5:7b").model == "qwen2.5:7b"
    with pytest.raises(InputError, match="unknown model"):
        build_model("ollama:")
    with OllamaServer([ANSWER], models=["qwen2.5:7b", "llama3.2:3b"]) as server:
        assert installed_models(server.url) == ["llama3.2:3b", "qwen2.5:7b"]
        monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
        finding = ollama_finding()
        assert (finding.state, finding.what) == ("ok", "Ollama")
        assert "llama3.2:3b, qwen2.5:7b" in finding.found
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    assert ollama_finding().state == "optional"


def test_a_batch_on_a_served_model_with_a_weak_one(monkeypatch) -> None:
    with OllamaServer([Say(ANSWER)], models=["qwen2.5:7b", "llama3.2:3b"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        options = GenerateOptions(
            3, faults=FaultPlan({"weak_model": 1.0}), model="ollama:qwen2.5:7b", weak_model="ollama:llama3.2:3b"
        )
        result = generate(options)
        assert {trace.model for trace in result.traces} == {"ollama:llama3.2:3b"}
        assert {request["model"] for request in server.requests} == {"llama3.2:3b"}
        with pytest.raises(ModelError, match="no model qwen3; run 'ollama pull qwen3'"):
            generate(replace(options, weak_model="ollama:qwen3"))


@SERVERS
def test_faults_act_on_served_models_too(spans, kind) -> None:
    with kind(ROUND_TRIP) as server:
        injection = FAULTS["unsupported_claim"](QUESTION, random.Random(4))
        assert ask(QUESTION, injection.model(model_of(server))).answer == injection.details["answered"]
    with kind(ROUND_TRIP) as server:
        injection = FAULTS["other_question"](QUESTION, random.Random(4))
        assert ask(QUESTION, injection.model(model_of(server))).question == QUESTION.question
        assert server.requests[0]["messages"][1]["content"] == injection.details["worked_on"]
    with kind([Say(calls=[("search", {"query": FIRST})]), ANSWER]) as server:
        ask(QUESTION, StopsEarly(1)(model_of(server)))
        assert ["tools" in request and bool(request["tools"]) for request in server.requests] == [True, False]
