"""One run of the agent in a process of its own, under the telemetry schema given; prints its spans as JSON lines."""

import asyncio
import json
import os
import sys


def main(schema: str) -> None:
    import observer_pipeline.agent

    assert observer_pipeline.agent.__doc__
    os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = schema
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    from google.adk.models import BaseLlm, LlmResponse
    from google.genai import types
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from observer_pipeline.agent.questions import Paragraph
    from observer_pipeline.agent.runner import Budget, run_agent
    from observer_pipeline.agent.tools import ParagraphIndex, Toolbox
    from observer_pipeline.agent.tracing import install_tracing

    class Scripted(BaseLlm):
        async def generate_content_async(self, llm_request, stream=False):
            done = sum(content.role == "model" for content in llm_request.contents)
            call = types.FunctionCall(name="search", args={"query": "Rhine"})
            bad = types.FunctionCall(name="lookup", args={"title": "Danube"})
            part = [types.Part(function_call=call), types.Part(function_call=bad), types.Part(text="Rhine")][done]
            usage = types.GenerateContentResponseUsageMetadata(
                prompt_token_count=10, candidates_token_count=5, total_token_count=15
            )
            yield LlmResponse(
                content=types.Content(role="model", parts=[part]),
                usage_metadata=usage,
                finish_reason=types.FinishReason.STOP,
                model_version="scripted-1",
            )

    exporter = InMemorySpanExporter()
    install_tracing(service_name="spans", project="p", processors=[SimpleSpanProcessor(exporter)], instance="spans-1")
    pages = [Paragraph("Rhine", ("The Rhine is long.",)), Paragraph("Elbe", ("The Elbe is not.",))]
    toolbox = Toolbox(ParagraphIndex(pages), 6)
    record = asyncio.run(
        run_agent("Which river?", model=Scripted(model="scripted"), toolbox=toolbox, budget=Budget(), seed="spans")
    )
    for span in exporter.get_finished_spans():
        print(  # noqa: T201
            json.dumps(
                {
                    "name": span.name,
                    "id": span.context.span_id,
                    "trace": f"{span.context.trace_id:032x}",
                    "parent": span.parent.span_id if span.parent else None,
                    "scope": span.instrumentation_scope.name,
                    "kind": span.kind.name,
                    "status": span.status.status_code.name,
                    "events": [event.name for event in span.events],
                    "resource": dict(span.resource.attributes),
                    "attributes": dict(span.attributes),
                }
            )
        )
    print(json.dumps({"answer": record.answer, "trace_id": record.trace_id}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
