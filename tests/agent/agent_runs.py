"""Runs of the agent for tests, their spans read back, and a receiver that speaks OTLP/HTTP."""

import asyncio
import gzip
import http.server
import threading
from typing import Any

from google.adk.models import BaseLlm
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan

from observer_core.traces.normalise import NormalisedTrace, normalise
from observer_pipeline.agent.generate import GenerateOptions
from observer_pipeline.agent.labeled_run import run_question
from observer_pipeline.agent.questions import AgentQuestion
from observer_pipeline.agent.runner import Budget, RunRecord, run_agent
from observer_pipeline.agent.tools import ParagraphIndex, Toolbox


def read_back(spans: list[ReadableSpan]) -> NormalisedTrace:
    """What the service reads from these spans, once they have been on the wire."""
    wire = encode_spans(spans).SerializeToString()
    return normalise(ExportTraceServiceRequest.FromString(wire).resource_spans)


def ask(question: AgentQuestion, model: BaseLlm, *, budget: Budget | None = None, **toolbox: Any) -> RunRecord:
    """One run of the agent with this model."""
    budget = budget or Budget()
    tools = Toolbox(ParagraphIndex(question.paragraphs), budget.tool_calls, **toolbox)
    return asyncio.run(run_agent(question.question, model=model, toolbox=tools, budget=budget))


def run(question: AgentQuestion, injection: Any = None, seed: int = 0) -> tuple[Any, Any]:
    """One labeled run with the offline model."""
    return asyncio.run(run_question(question, GenerateOptions(1, seed=seed), injection))


class Receiver:
    """An OTLP/HTTP receiver; `status` is what it answers."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.status = 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if body and receiver.status == 200:
                    receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status if body else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def by_trace(self) -> dict[str, list[Any]]:
        """Resource spans of each trace received."""
        out: dict[str, list[Any]] = {}
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        copy = type(resource)(resource=resource.resource)
                        copy.scope_spans.add(scope=scope.scope).spans.append(span)
                        out.setdefault(span.trace_id.hex(), []).append(copy)
        return out
