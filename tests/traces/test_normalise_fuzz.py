"""Whatever clients send, normalising and slicing give a trace and never an exception."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from observer_core.slices import build_state
from observer_core.traces.dialects.message import answer_text, messages_of, question_text
from observer_core.traces.evidence import evidence_texts
from observer_core.traces.normalise import normalise
from observer_core.traces.to_spans import trace_to_spans
from observer_core.traces.trace import Trace

WORDS = st.sampled_from(
    ["role", "parts", "content", "text", "type", "tool_calls", "function", "name", "arguments", "args", "id", "thought",
     "function_call", "function_response", "response", "messages", "contents", "choices", "message", "new_message",
     "results", "document", "error", "isError", "title", "user", "assistant", "model", "tool", "tool_call", "kwargs",
     "tool_call_response", "reasoning", "question", "answer", "output", "0", "1", "é😀"]
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), WORDS)
SHAPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["openinference.span.kind", "input.value", "input.mime_type", "output.value", "output.mime_type", "tool.name",
     "tool.parameters", "llm.model_name", "llm.input_messages.0.message.role", "llm.input_messages.0.message.content",
     "llm.input_messages.0.message", "llm.input_messages.x.message.role", "llm.output_messages.1.message.tool_calls.2",
     "llm.output_messages.1.message.contents.0.message_content.text", "llm.output_messages",
     "llm.output_messages.1.message.tool_calls.0.tool_call.function.name",
     "llm.output_messages.1.message.tool_calls.0.tool_call.function.arguments",
     "llm.input_messages.1.message.tool_call_id", "retrieval.documents.0.document.content",
     "retrieval.documents.0.document.metadata", "retrieval.documents.0", "gen_ai.operation.name",
     "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt.0.content", "gen_ai.completion.0.tool_calls.0.name",
     "gen_ai.completion.0.tool_calls", "gen_ai.completion.0", "gen_ai.tool.name", "gen_ai.tool.call.arguments",
     "gen_ai.tool.call.result", "gen_ai.retrieval.documents", "gcp.vertex.agent.llm_request",
     "gcp.vertex.agent.llm_response", "gcp.vertex.agent.tool_call_args", "gcp.vertex.agent.tool_response",
     "traceloop.span.kind", "traceloop.entity.input", "question", "answer", "observer.evidence", "observer.tool.status"]
)  # fmt: skip
KINDS = st.sampled_from(["LLM", "TOOL", "AGENT", "CHAIN", "RETRIEVER", "chat", "execute_tool", "invoke_agent", "application/json", "text/plain"])  # fmt: skip


def _native(value) -> AnyValue:
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
    out = AnyValue()
    if isinstance(value, list):
        out.array_value.values.extend(map(_native, value))
    else:
        for key, item in value.items():
            out.kvlist_value.values.add(key=key).value.CopyFrom(_native(item))
    return out


def _text(value, cut) -> AnyValue:
    text = json.dumps(value)
    return AnyValue(string_value=text[: len(text) - cut])


VALUES = st.one_of(
    KINDS.map(lambda kind: AnyValue(string_value=kind)),
    st.builds(_text, SHAPES, st.sampled_from([0, 0, 1, 5])),
    SHAPES.map(_native),
)


@given(SHAPES)
@settings(max_examples=1500, deadline=None)
def test_any_json_is_read_or_passed_over(value):
    for message in messages_of(value):
        assert isinstance(message.text, str)
        assert all(isinstance(call.name, str) for call in message.calls)
    for text in (question_text(value), answer_text(value)):
        assert text is None or isinstance(text, str)
    assert all(isinstance(text, str) for text in evidence_texts(value))


IDS = st.sampled_from([b"", b"a" * 8, b"b" * 8, b"c" * 8])


@st.composite
def spans(draw):
    span = Span(
        trace_id=b"t" * 16, span_id=draw(IDS), parent_span_id=draw(IDS), name=draw(st.sampled_from(["", "step"])),
        start_time_unix_nano=draw(st.integers(0, 5)), end_time_unix_nano=draw(st.integers(0, 5)),
    )  # fmt: skip
    span.status.code = draw(st.integers(0, 4))
    for key in draw(st.lists(KEYS, max_size=6)):
        span.attributes.add(key=key).value.CopyFrom(draw(VALUES))
    return span


@given(st.lists(spans(), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_spans_give_a_trace(some_spans):
    group = ResourceSpans()
    group.scope_spans.add().spans.extend(some_spans)
    read = normalise([group])
    assert read.spans == len(some_spans)
    assert read.root_span_id in {span.span_id for span in some_spans}
    build_state(read.trace, {"format": "v1"}).text.encode()
    again = Trace.from_json(json.loads(json.dumps(read.trace.to_json())))
    assert again.to_json() == read.trace.to_json() or "NaN" in json.dumps(read.trace.to_json())
    for key in read.attributes:
        read.attributes[key]
    trace_to_spans(read.trace, project=None, now_ns=10**18).SerializeToString()
