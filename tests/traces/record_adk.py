"""Records the fixtures `adk_*.json`: the spans of one run of a real ADK agent, as each instrumentation writes them.

    python tests/traces/record_adk.py            # records all, each in a process of its own

The agent's model is scripted, so that a recording differs from the last only where ADK or the instrumentor changed.
Ids come from a seeded generator and times are moved to a fixed day.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
VARIANTS = {
    "adk_schema1": {"ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": "1"},
    "adk_schema2": {},
    "adk_schema2_content": {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"},
    "adk_openinference_schema1": {"ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": "1"},
    "adk_openinference_schema2": {},
}
EPOCH_NS = 1_790_000_000_000_000_000

QUESTION = "Which river is longer, the Rhine or the Elbe?"
ANSWER = "The Rhine."
PAGES = {
    "Rhine": "The Rhine is 1,230 km long.",
    "Elbe": "The Elbe is 1,094 km long.",
}


def search(query: str) -> dict:
    """Search the corpus.

    Args:
        query: What to look for.
    """
    return {"results": [{"title": title, "text": text} for title, text in PAGES.items() if title in query]}


def lookup(title: str) -> dict:
    """Read one page.

    Args:
        title: The page's exact title.
    """
    return {"title": title, "text": PAGES[title]} if title in PAGES else {"error": f"no page {title}"}


async def _run() -> None:
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmRequest, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class ScriptedLlm(BaseLlm):
        """Searches, then looks up two pages at once (one does not exist), then answers with a thought before it."""

        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            parts = [part for content in llm_request.contents for part in content.parts or []]
            done = sum(part.function_response is not None for part in parts)
            if done == 0:
                answer = [types.Part(function_call=types.FunctionCall(name="search", args={"query": "Rhine"}))]
            elif done == 1:
                answer = [types.Part(text="Two pages are missing.")] + [
                    types.Part(function_call=types.FunctionCall(name="lookup", args={"title": title}))
                    for title in ("Elbe", "Danube")
                ]
            else:
                answer = [types.Part(text="1,230 is more than 1,094.", thought=True), types.Part(text=ANSWER)]
            yield LlmResponse(
                content=types.Content(role="model", parts=answer),
                usage_metadata=types.GenerateContentResponseUsageMetadata(
                    prompt_token_count=10, candidates_token_count=5, total_token_count=15
                ),
                finish_reason=types.FinishReason.STOP,
            )

    agent = LlmAgent(
        name="researcher",
        model=ScriptedLlm(model="scripted"),
        instruction="Answer from the corpus.",
        tools=[search, lookup],
    )
    runner = InMemoryRunner(agent=agent, app_name="rivers")
    await runner.session_service.create_session(app_name="rivers", user_id="reader", session_id="session-1")
    message = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    async for _ in runner.run_async(user_id="reader", session_id="session-1", new_message=message):
        pass


def record(name: str, folder: Path) -> None:
    """Run the agent once in this process and write `<name>.json`."""
    import random

    from openinference.instrumentation.google_adk import GoogleADKInstrumentor
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    from observer_core.traces.otlp import write_otlp_file

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
    trace.set_tracer_provider(provider)
    if "openinference" in name:
        GoogleADKInstrumentor().instrument(tracer_provider=provider)
    asyncio.run(_run())
    request = encode_spans(exporter.get_finished_spans())
    spans = [span for rs in request.resource_spans for ss in rs.scope_spans for span in ss.spans]
    shift = EPOCH_NS - min(span.start_time_unix_nano for span in spans)
    for span in spans:
        span.start_time_unix_nano += shift
        span.end_time_unix_nano += shift
        for event in span.events:
            event.time_unix_nano += shift
    write_otlp_file(folder / f"{name}.json", [request])


def record_all(folder: Path) -> None:
    """Record every variant into `folder`, each in a process with its own switches."""
    switches = {switch for variant in VARIANTS.values() for switch in variant}
    environment = {name: value for name, value in os.environ.items() if name not in switches}
    for name, variant in VARIANTS.items():
        subprocess.run([sys.executable, __file__, name, str(folder)], env=environment | variant, check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        record(sys.argv[1], Path(sys.argv[2]))
    else:
        record_all(FIXTURES)
