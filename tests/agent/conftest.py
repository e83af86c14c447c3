"""The agent in this process with its spans kept in memory, a receiver, and the real data where it is."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_runs import Receiver
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from observer_pipeline.agent.tracing import install_tracing

SHARED = Path(__file__).parents[3] / "shared/data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the shared data folder is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def memory() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    install_tracing(service_name="test-agent", project="tests", processors=[SimpleSpanProcessor(exporter)])
    return exporter


@pytest.fixture
def spans(memory: InMemorySpanExporter) -> Iterator[Callable[[], list[ReadableSpan]]]:
    memory.clear()
    yield lambda: list(memory.get_finished_spans())
    memory.clear()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()
