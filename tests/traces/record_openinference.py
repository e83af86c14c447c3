# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "openinference-instrumentation-openai==0.1.66", "openai==3.57.0",
#   "openinference-instrumentation-langchain==0.1.80", "langgraph==1.2.24", "langchain-openai==1.7.4",
#   "opentelemetry-exporter-otlp-proto-common<1.45", "orjson", "openinference-semantic-conventions",
# ]
# ///
"""Records the fixtures `openai_*.json` and `langgraph.json`: agents over the OpenAI client and over LangGraph as
OpenInference's instrumentations write them.

    PYTHONPATH=. uv run --no-project tests/traces/record_openinference.py

A scripted server stands in for the model. Ids come from a seeded generator and times are moved to a fixed day.
"""

import json
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from openinference.instrumentation import TracerProvider
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from observer_core.traces.otlp import write_otlp_file

FIXTURES = Path(__file__).parent / "fixtures"
EPOCH_NS = 1_790_000_000_000_000_000
QUESTION = "Which river is longer, the Rhine or the Elbe?"
ANSWER = "The Rhine."
PAGES = {"Rhine": "The Rhine is 1,230 km long.", "Elbe": "The Elbe is 1,094 km long."}


class Model(BaseHTTPRequestHandler):
    """An OpenAI chat endpoint that asks for two pages (one does not exist), then answers; streams when asked to."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        done = sum(message["role"] == "tool" for message in asked["messages"])
        if done == 0:
            calls = [
                {"id": f"call_{i}", "index": i, "type": "function",
                 "function": {"name": "lookup", "arguments": json.dumps({"title": title})}}
                for i, title in enumerate(["Rhine", "Danube"])
            ]  # fmt: skip
            message, reason = {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
        else:
            message, reason = {"role": "assistant", "content": ANSWER}, "stop"
        base = {"id": "chatcmpl-1", "created": 1, "model": "scripted-1"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if asked.get("stream"):
            words = [{"role": "assistant", "content": word} for word in ("The ", "Rhine.")]
            deltas = words if reason == "stop" else [message]
            chunks = [base | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": d}]} for d in deltas]
            end = {"index": 0, "delta": {}, "finish_reason": reason}
            chunks.append(base | {"object": "chat.completion.chunk", "choices": [end], "usage": usage})
            body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            choices = [{"index": 0, "message": message, "finish_reason": reason}]
            body, kind = (
                json.dumps(base | {"object": "chat.completion", "choices": choices, "usage": usage}),
                "application/json",
            )
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None: ...


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Read one page.",
            "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        },
    }
]


def run_openai(provider: TracerProvider, url: str, *, stream: bool, tool_spans: bool) -> None:
    """A hand-written agent loop; with `tool_spans` the author has marked agent and tool."""
    from openai import OpenAI
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
    client = OpenAI(base_url=url, api_key="none")
    tracer = provider.get_tracer("rivers")

    def lookup(title: str) -> dict:
        return {"title": title, "text": PAGES[title]} if title in PAGES else {"error": f"no page {title}"}

    read = tracer.tool(lookup) if tool_spans else lookup

    def complete(messages: list) -> tuple[str | None, list]:
        if not stream:
            message = (
                client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS).choices[0].message
            )
            return message.content, [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
        text, calls = "", {}
        for chunk in client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS, stream=True):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    calls[call.index] = (call.id, call.function.name, call.function.arguments)
        return text or None, list(calls.values())

    def agent(question: str) -> str:
        messages: list = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
        while True:
            text, calls = complete(messages)
            if not calls:
                return text or ""
            asked = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
            messages.append({"role": "assistant", "content": text, "tool_calls": asked})
            for call_id, _, arguments in calls:
                result = json.dumps(read(**json.loads(arguments)))
                messages.append({"role": "tool", "tool_call_id": call_id, "content": result})

    if tool_spans:
        tracer.agent(agent)(QUESTION)
    else:
        with tracer.start_as_current_span("handle_request"):
            agent(QUESTION)


def run_langgraph(provider: TracerProvider, url: str) -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from openinference.instrumentation.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=provider)

    @tool
    def lookup(title: str) -> dict:
        """Read one page."""
        return {"title": title, "text": PAGES[title]} if title in PAGES else {"error": f"no page {title}"}

    model = ChatOpenAI(model="scripted", base_url=url, api_key="none").bind_tools([lookup])  # type: ignore[arg-type]
    graph = StateGraph(MessagesState)
    graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([lookup]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    graph.compile().invoke({"messages": [("user", QUESTION)]})


VARIANTS = {
    "openai_agent": lambda provider, url: run_openai(provider, url, stream=False, tool_spans=True),
    "openai_streaming": lambda provider, url: run_openai(provider, url, stream=True, tool_spans=True),
    "openai_calls_only": lambda provider, url: run_openai(provider, url, stream=False, tool_spans=False),
    "langgraph": run_langgraph,
}


def record(name: str) -> None:
    class SeededIds(IdGenerator):
        def __init__(self) -> None:
            self.random = random.Random(name)

        def generate_span_id(self) -> int:
            return self.random.getrandbits(64)

        def generate_trace_id(self) -> int:
            return self.random.getrandbits(128)

    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "rivers"}), id_generator=SeededIds())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    VARIANTS[name](provider, f"http://127.0.0.1:{server.server_port}/v1")
    server.shutdown()
    request = encode_spans(exporter.get_finished_spans())
    spans = [span for rs in request.resource_spans for ss in rs.scope_spans for span in ss.spans]
    shift = EPOCH_NS - min(span.start_time_unix_nano for span in spans)
    for span in spans:
        span.start_time_unix_nano += shift
        span.end_time_unix_nano += shift
        for event in span.events:
            event.time_unix_nano += shift
    write_otlp_file(FIXTURES / f"{name}.json", [request])


if __name__ == "__main__":
    for variant in sys.argv[1:] or VARIANTS:
        record(variant)
