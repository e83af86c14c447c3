"""Normalising recorded ADK runs (see `record_adk.py`) and hand-made spans of every dialect."""

import json
from itertools import permutations
from pathlib import Path

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from record_adk import ANSWER, QUESTION, record_all

from observer_core.traces.evidence import evidence_texts
from observer_core.traces.normalise import normalise
from observer_core.traces.otlp import read_otlp_file
from observer_core.traces.trace import ABSENT

FIXTURES = Path(__file__).parent / "fixtures"
WITH_CONTENT = ["adk_schema1", "adk_schema2_content", "adk_openinference_schema1", "adk_openinference_schema2"]
CALLS = [
    ("search", {"query": "Rhine"}, False),
    ("lookup", {"title": "Elbe"}, False),
    ("lookup", {"title": "Danube"}, True),
]


def _recorded(name: str) -> list[ResourceSpans]:
    return [spans for request in read_otlp_file(FIXTURES / f"{name}.json") for spans in request.resource_spans]


@pytest.mark.parametrize("name", WITH_CONTENT)
def test_recorded_runs_give_the_same_trace(name):
    read = normalise(_recorded(name))
    trace = read.trace
    assert trace.question == QUESTION
    # Native schema 2 does not mark thoughts, so there the thought stays before the answer.
    assert trace.final_answer == (ANSWER if name != "adk_schema2_content" else f"1,230 is more than 1,094.\n{ANSWER}")
    assert [(call.name, call.args, call.status == "error") for call in trace.tool_calls] == CALLS
    assert json.loads(trace.tool_calls[2].result_preview or "") == {"error": "no page Danube"}
    assert trace.evidence == ["Rhine: The Rhine is 1,230 km long.", "Elbe: The Elbe is 1,094 km long."]
    assert trace.model == "scripted"
    # Schema 2 under OpenInference 1.0.5 writes every model call onto one span.
    assert trace.steps == (1 if name == "adk_openinference_schema2" else 3)
    assert read.complete
    assert not read.truncated
    assert read.service == read.project == "rivers"
    assert read.tools == ("search", "lookup")
    assert read.errors == ("execute_tool lookup: TOOL_ERROR",)
    assert {"LLM", "TOOL", "AGENT"} <= read.kinds
    assert "error" in read.statuses


@pytest.mark.parametrize("name", ["openai_agent", "openai_streaming", "openai_calls_only", "langgraph"])
def test_recorded_openinference_runs_of_other_frameworks(name):
    """Over the OpenAI client (also streaming, also with nothing but its model calls) and over LangGraph."""
    read = normalise(_recorded(name))
    assert (read.trace.question, read.trace.final_answer) == (QUESTION, ANSWER)
    # LangChain hands a tool's only argument on without its name.
    args = ["Rhine", "Danube"] if name == "langgraph" else [{"title": "Rhine"}, {"title": "Danube"}]
    assert [(call.name, call.args, call.status == "error") for call in read.trace.tool_calls] == [
        ("lookup", args[0], False),
        ("lookup", args[1], True),
    ]
    assert read.trace.evidence == ["Rhine: The Rhine is 1,230 km long."]
    assert (read.trace.model, read.trace.steps, read.project) == ("scripted-1", 2, "rivers")
    assert read.complete


def test_langchain_messages_are_read_also_from_the_root_alone():
    [group] = _recorded("langgraph")
    root = next(span for scope in group.scope_spans for span in scope.spans if not span.parent_span_id)
    read = _read(root)
    assert (read.trace.question, read.trace.final_answer) == (QUESTION, ANSWER)


def test_a_run_recorded_without_content_still_shows_its_shape():
    read = normalise(_recorded("adk_schema2"))
    assert (read.trace.question, read.trace.final_answer, read.trace.evidence) == ("", "", [])
    assert [(call.name, call.args, call.status == "error") for call in read.trace.tool_calls] == [
        (name, ABSENT, failed) for name, _, failed in CALLS
    ]
    assert read.trace.steps == 3


def test_policy_facts_see_every_span_and_resource():
    read = normalise(_recorded("adk_openinference_schema1"))
    assert read.attributes["user.id"] == ["reader"]
    assert read.attributes["service.name"] == ["rivers"]
    assert sorted(read.attributes["tool.name"]) == ["lookup", "search"]
    assert "nowhere" not in read.attributes
    assert read.spans == 11
    assert read.duration_ms == read.trace.latency_ms > 0


def test_arrival_order_and_batches_do_not_matter():
    [group] = _recorded("adk_openinference_schema1")
    pieces = []
    for scope_spans in group.scope_spans:
        for span in scope_spans.spans:
            piece = ResourceSpans(resource=group.resource)
            piece.scope_spans.add(scope=scope_spans.scope).spans.append(span)
            pieces.append(piece)
    want = normalise([group]).trace
    assert normalise(pieces[::-1]).trace == want
    assert normalise(pieces[5:] + pieces[:5]).trace == want


@pytest.mark.heavy
def test_the_installed_adk_still_writes_what_was_recorded(tmp_path):
    """Fails when ADK or the instrumentor changes: look at the difference, then record again (`record_adk.py`)."""
    record_all(tmp_path)
    for path in sorted(FIXTURES.glob("adk_*.json")):
        now, then = (
            sorted(
                (span.name, scope.scope.name, span.status.code, *sorted(attribute.key for attribute in span.attributes))
                for request in read_otlp_file(folder / path.name)
                for group in request.resource_spans
                for scope in group.scope_spans
                for span in scope.spans
            )
            for folder in (tmp_path, FIXTURES)
        )
        assert now == then, path.name


def _span(number: int, parent: int | None, attributes: dict, *, name: str = "step", start: int | None = None, status=0):
    span = Span(trace_id=b"t" * 16, span_id=bytes([number]) * 8, name=name)
    if parent is not None:
        span.parent_span_id = bytes([parent]) * 8
    span.start_time_unix_nano = 10**18 + (number if start is None else start) * 10**6
    span.end_time_unix_nano = span.start_time_unix_nano + 10**6
    span.status.code = status
    for key, value in attributes.items():
        field = "int_value" if isinstance(value, int) else "string_value"
        span.attributes.add(key=key, value=AnyValue(**{field: value}))
    return span


def _read(*spans: Span):
    group = ResourceSpans()
    group.scope_spans.add().spans.extend(spans)
    return normalise([group])


def test_openinference_wins_over_genai_and_genai_over_legacy():
    tool = {
        "openinference.span.kind": "TOOL", "gen_ai.operation.name": "chat",
        "tool.name": "one", "gen_ai.tool.name": "two",
        "input.value": '{"a":1}', "gen_ai.tool.call.arguments": '{"a":2}', "gcp.vertex.agent.tool_call_args": '{"a":3}',
        "output.value": "first", "gen_ai.tool.call.result": "second",
    }  # fmt: skip
    for gone, name, args, result in [
        ((), "one", {"a": 1}, "first"),
        (("tool.name", "output.value"), "two", {"a": 1}, "second"),
        (("tool.name", "input.value"), "two", {"a": 2}, "first"),
        (("input.value", "gen_ai.tool.call.arguments"), "one", {"a": 3}, "first"),
    ]:
        [call] = _read(_span(1, None, {k: v for k, v in tool.items() if k not in gone})).trace.tool_calls
        assert (call.name, call.args, call.result_preview) == (name, args, result)


def test_tool_calls_come_from_messages_when_no_span_tells_of_them():
    first_out = {
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.1.tool_call.id": "c1",
        "llm.output_messages.0.message.tool_calls.1.tool_call.function.name": "search",
        "llm.output_messages.0.message.tool_calls.1.tool_call.function.arguments": '{"query": "Rhine"}',
        "llm.output_messages.0.message.tool_calls.2.tool_call.id": "c2",
        "llm.output_messages.0.message.tool_calls.2.tool_call.function.name": "lookup",
        "llm.output_messages.0.message.tool_calls.2.tool_call.function.arguments": '{"title": "Oder',
    }
    second = {
        # index 0 was evicted, as SDKs do beyond 128 attributes
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.contents.0.message_content.type": "text",
        "llm.input_messages.1.message.contents.0.message_content.text": "How long is it?",
        "llm.input_messages.3.message.role": "tool",
        "llm.input_messages.3.message.tool_call_id": "c2",
        "llm.input_messages.3.message.content": '{"error": "no page"}',
        "llm.input_messages.4.message.role": "tool",
        "llm.input_messages.4.message.tool_call_id": "c1",
        "llm.input_messages.4.message.content": '{"results": [{"title": "Rhine", "text": "1,230 km"}]}',
        "llm.output_messages.0.message.role": "model",
        "llm.output_messages.0.message.contents.0.message_content.type": "reasoning",
        "llm.output_messages.0.message.contents.0.message_content.text": "Easy.",
        "llm.output_messages.0.message.contents.1.message_content.type": "text",
        "llm.output_messages.0.message.contents.1.message_content.text": "1,230 km.",
    }
    llm = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
    read = _read(_span(1, None, {}), _span(2, 1, llm | first_out), _span(3, 1, llm | second))
    assert [(call.name, call.args, call.status) for call in read.trace.tool_calls] == [
        ("search", {"query": "Rhine"}, ABSENT),
        ("lookup", {"title": "Oder"}, "error"),
    ]
    assert read.trace.evidence == ["Rhine: 1,230 km"]
    assert read.trace.final_answer == "1,230 km."
    assert read.tools == ("search", "lookup")


def test_the_question_of_a_later_turn_is_the_last_thing_the_user_said():
    history = [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "user", "parts": [{"type": "text", "content": "First?"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "One."}]},
        {"role": "user", "parts": [{"type": "text", "content": "Second?"}]},
    ]
    answer = [
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "Two."}]}
    ]
    read = _read(
        _span(1, None, {"gen_ai.operation.name": "invoke_agent"}),
        _span(2, 1, {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(history),
                     "gen_ai.output.messages": json.dumps(answer), "gen_ai.response.model": "m"}),
    )  # fmt: skip
    assert (read.trace.question, read.trace.final_answer, read.trace.model) == ("Second?", "Two.", "m")


def test_older_genai_and_plain_attributes():
    read = _read(
        _span(1, None, {"traceloop.span.kind": "workflow", "traceloop.entity.input": '{"inputs": {}, "question": "Q?"}'}),
        _span(2, 1, {"traceloop.span.kind": "tool", "traceloop.entity.name": "search", "traceloop.entity.input": '{"q": 1}',
                     "traceloop.entity.output": '["a", "b"]'}),
        _span(3, 1, {"gen_ai.operation.name": "chat", "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Q?",
                     "gen_ai.completion.0.content": "A."}),
    )  # fmt: skip
    assert (read.trace.question, read.trace.final_answer) == ("Q?", "A.")
    assert [(call.name, call.args) for call in read.trace.tool_calls] == [("search", {"q": 1})]
    assert read.trace.evidence == ["a", "b"]
    bare = _read(_span(1, None, {"question": "Q?", "answer": "A."}))
    assert (bare.trace.question, bare.trace.final_answer) == ("Q?", "A.")


def test_retrieved_documents_are_the_evidence():
    read = _read(
        _span(1, None, {"openinference.span.kind": "CHAIN", "input.value": "Q?", "output.value": "A."}),
        _span(2, 1, {"openinference.span.kind": "TOOL", "tool.name": "rag", "output.value": "joined text"}),
        _span(3, 2, {
            "openinference.span.kind": "RETRIEVER",
            "retrieval.documents.1.document.content": "second",
            "retrieval.documents.0.document.content": "first",
            "retrieval.documents.0.document.metadata": '{"title": "T"}',
        }),
    )  # fmt: skip
    assert read.trace.evidence == ["T: first", "second"]


def test_nested_copies_of_a_call_count_once():
    tool = {"openinference.span.kind": "TOOL", "tool.name": "search"}
    native = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    llm = {"gen_ai.operation.name": "chat"}
    read = _read(_span(1, None, {}), _span(2, 1, tool), _span(3, 2, native), _span(4, 1, tool),
                 _span(5, 1, llm), _span(6, 5, llm))  # fmt: skip
    assert len(read.trace.tool_calls) == 2
    assert read.trace.steps == 1


def test_a_cut_root_output_gives_its_text_and_the_truncated_flag():
    event = json.dumps(
        {"content": {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "The Rhine."}]}}
    )
    read = _read(_span(1, None, {"openinference.span.kind": "CHAIN", "output.value": event[:-4]}))
    assert read.truncated
    assert read.trace.final_answer == "The Rhine."


def test_a_failed_run_has_no_answer_but_its_error():
    span = _span(1, None, {"openinference.span.kind": "AGENT", "input.value": "Q?"}, name="run", status=2)
    span.events.add(name="exception").attributes.add(key="exception.message").value.string_value = "budget spent"
    read = _read(span)
    assert (read.trace.question, read.trace.final_answer) == ("Q?", "")
    assert read.errors == ("run: budget spent",)
    assert read.statuses == {"error"}


@pytest.mark.parametrize(
    ("spans", "root", "complete"),
    [
        ([_span(1, None, {}), _span(2, 1, {})], 1, True),
        ([_span(2, 1, {}), _span(3, 2, {})], 2, False),  # the root never came
        ([_span(1, None, {}), _span(2, None, {})], 1, False),  # two roots: the earliest
        ([_span(3, 9, {}, start=0), _span(1, None, {}), _span(2, None, {})], 3, False),  # an orphan is earlier still
        ([_span(1, None, {}), _span(3, 9, {}, start=0)], 1, False),  # one root wins over an earlier orphan
        ([_span(1, 2, {}), _span(2, 1, {})], 1, False),  # a cycle
        ([_span(1, 1, {})], 1, False),  # its own parent
        ([_span(1, None, {}), _span(2, 1, {}), _span(2, 1, {})], 1, True),  # one span id twice
    ],
)
def test_roots(spans, root, complete):
    for order in permutations(spans):
        read = _read(*order)
        assert read.root_span_id == bytes([root]) * 8
        assert read.complete is complete
        assert read.spans == len(spans)


def test_no_spans_at_all():
    read = normalise([])
    assert (read.root_span_id, read.spans, read.complete, read.trace.question) == (None, 0, False, "")


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        ({"results": [{"title": "T", "text": "x"}, {"text": "y"}]}, ["T: x", "y"]),
        ({"title": "T", "text": "x"}, ["T: x"]),
        ({"results": []}, []),
        ({"error": "gone"}, []),
        ({"content": [{"type": "text", "text": "x"}], "isError": False}, ["x"]),
        ({"content": [{"type": "text", "text": "x"}], "isError": True}, []),
        ({"result": "x"}, ["x"]),
        (["x", {"page_content": "y"}], ["x", "y"]),
        ({"celsius": 21}, ['{"celsius": 21}']),
        ("x", ["x"]),
        (7, ["7"]),
        (None, []),
    ],
)
def test_evidence_of_tool_results(result, texts):
    assert evidence_texts(result) == texts


def _with_events(span: Span, *events: tuple[str, dict]) -> Span:
    for name, attributes in events:
        event = span.events.add(name=name)
        for key, value in attributes.items():
            event.attributes.add(key=key).value.string_value = value
    return span


HISTORY = [{"role": "user", "content": "First?"}, {"role": "assistant", "content": "One."}, {"role": "user", "content": "Second?"}]  # fmt: skip


@pytest.mark.parametrize(
    "events",
    [
        [
            ("gen_ai.client.inference.operation.details", {
                "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Second?"}]}]),
                "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Two."}]}]),
            }),
        ],
        [
            ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(HISTORY)}),
            ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([{"content": "Two."}])}),
        ],
        [
            ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(HISTORY)}),
            ("gen_ai.content.completion", {"gen_ai.completion": "Two."}),
        ],
        [
            ("gen_ai.system.message", {"content": "Be brief."}),
            ("gen_ai.user.message", {"content": "First?"}),
            ("gen_ai.assistant.message", {"content": "One."}),
            ("gen_ai.user.message", {"content": "Second?"}),
            ("gen_ai.choice", {"message": json.dumps({"role": "assistant", "content": "Two."})}),
        ],
        [
            ("gen_ai.user.message", {"gen_ai.event.content": json.dumps({"role": "user", "content": "Second?"})}),
            ("gen_ai.choice", {"gen_ai.event.content": json.dumps({"index": 0, "message": {"content": "Two."}})}),
        ],
    ],
    ids=["details", "content-json", "content-text", "messages", "event-content"],
)  # fmt: skip
def test_genai_content_in_span_events(events):
    call = _with_events(_span(2, 1, {"gen_ai.operation.name": "chat", "gen_ai.system": "openai"}), *events)
    read = _read(_span(1, None, {"gen_ai.operation.name": "invoke_agent"}), call)
    assert (read.trace.question, read.trace.final_answer) == ("Second?", "Two.")


def test_genai_tool_calls_in_span_events():
    asks = {
        "message": {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "function": {"name": "search", "arguments": '{"q": 1}'}}],
        }
    }
    first = _with_events(
        _span(2, 1, {"gen_ai.operation.name": "chat"}),
        ("gen_ai.user.message", {"content": "Q?"}),
        ("gen_ai.choice", {"gen_ai.event.content": json.dumps(asks)}),
    )
    second = _with_events(
        _span(3, 1, {"gen_ai.operation.name": "chat"}),
        ("gen_ai.user.message", {"content": "Q?"}),
        ("gen_ai.tool.message", {"id": "c1", "tool_call_id": "c1", "content": '{"results": [{"text": "found"}]}'}),
        ("gen_ai.choice", {"message": json.dumps({"content": "A."})}),
    )
    read = _read(_span(1, None, {}), first, second)
    assert [(call.name, call.args) for call in read.trace.tool_calls] == [("search", {"q": 1})]
    assert (read.trace.evidence, read.trace.final_answer) == (["found"], "A.")


def test_tokens_of_every_call_count_once():
    outer = {"openinference.span.kind": "LLM", "llm.token_count.prompt": 10, "llm.token_count.completion": 5}
    inner = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5}
    older = {"gen_ai.operation.name": "chat", "gen_ai.usage.prompt_tokens": 3, "gen_ai.usage.completion_tokens": 2}
    silent = {"gen_ai.operation.name": "chat"}
    read = _read(_span(1, None, {}), _span(2, 1, outer), _span(3, 2, inner), _span(4, 1, older), _span(5, 1, silent))
    assert read.tokens == (13, 7)
    assert read.trace.steps == 3


def test_nested_agents_the_outermost_speaks_for_the_run():
    agent = {"openinference.span.kind": "AGENT"}
    read = _read(
        _span(1, None, agent | {"input.value": "Plan my trip", "output.value": "Done: Vienna."}),
        _span(2, 1, agent | {"input.value": "find flights", "output.value": "OS 101"}),
        _span(
            3,
            2,
            {"openinference.span.kind": "TOOL", "tool.name": "flights", "input.value": "{}", "output.value": "OS 101"},
        ),
        _span(4, 1, agent | {"input.value": "find hotels", "output.value": "Sacher"}),
        _span(
            5,
            4,
            {"openinference.span.kind": "TOOL", "tool.name": "hotels", "input.value": "{}", "output.value": "Sacher"},
        ),
    )
    assert (read.trace.question, read.trace.final_answer) == ("Plan my trip", "Done: Vienna.")
    assert read.tools == ("flights", "hotels")
    # Without content on the root, the agents that ran one after the other: the last one's answer.
    read = _read(
        _span(1, None, {"openinference.span.kind": "CHAIN"}),
        _span(2, 1, agent | {"input.value": "find flights", "output.value": "OS 101"}, start=1),
        _span(4, 1, agent | {"output.value": "Sacher"}, start=5),
    )
    assert (read.trace.question, read.trace.final_answer) == ("find flights", "Sacher")


def test_what_an_sdk_evicts_beyond_128_attributes_is_found_elsewhere():
    """The SDK keeps the last 128 attributes: of a long chat the root's own and the first messages are gone."""
    chat = {}
    for number in range(40, 80):
        role = "user" if number % 2 == 0 else "assistant"
        chat[f"llm.input_messages.{number}.message.role"] = role
        chat[f"llm.input_messages.{number}.message.content"] = f"{role} {number}"
    chat["llm.input_messages.80.message.role"] = "user"
    chat["llm.input_messages.80.message.content"] = "And the Elbe?"
    span = _span(2, 1, chat | {"output.value": json.dumps({"choices": [{"message": {"content": "1,094 km."}}]})})
    span.dropped_attributes_count = 90
    tool = {"openinference.span.kind": "TOOL", "tool.name": "lookup"}
    read = _read(_span(1, None, {}), span, _span(3, 1, tool))
    assert read.kinds == {"LLM", "TOOL"}, "although the kind is among what was evicted"
    assert (read.trace.question, read.trace.final_answer) == ("And the Elbe?", "1,094 km.")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("哪条河更长，莱茵河还是易北河？", "莱茵河。"),
        ("أي نهر أطول، الراين أم الإلبه؟", "الراين."),
        ("Hangisi daha uzun, Ren mi Elbe mi? İ ı", "Ren."),
        ("どちらの川が長いですか？👩‍🚀🌊", "ライン川です。"),
    ],
)
def test_other_languages_go_through_unchanged(question: str, answer: str):
    event = {"new_message": {"role": "user", "parts": [{"text": question}]}}
    out = {"content": {"role": "model", "parts": [{"text": answer}]}}
    for as_json in (True, False):  # escaped and as it is
        attributes = {
            "input.value": json.dumps(event, ensure_ascii=as_json),
            "output.value": json.dumps(out, ensure_ascii=as_json),
        }
        read = _read(_span(1, None, {"openinference.span.kind": "CHAIN", **attributes}))
        assert (read.trace.question, read.trace.final_answer) == (question, answer)
