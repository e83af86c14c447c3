"""The agent in ADK's chat UI: what it answers from, and the server's process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from observer_core.errors import InputError
from observer_pipeline.agent.hotpot import read_hotpot
from observer_pipeline.agent.questions import AgentQuestion, Paragraph
from observer_pipeline.agent.world import generate_world

AGENTS_FOLDER = Path(__file__).with_name("chat_agents")
SOURCE_VARIABLE = "OBSERVER_CHAT_SOURCE"
SAMPLE_QUESTIONS = 40


def sample_questions(source: str | None) -> list[AgentQuestion]:
    """The questions a chat or a single run can be asked: of a HotpotQA file, else of the generated world."""
    return read_hotpot(Path(source)) if source else list(generate_world(SAMPLE_QUESTIONS, seed=0))


def all_paragraphs(questions: list[AgentQuestion]) -> list[Paragraph]:
    """The paragraphs of all questions, each title once."""
    return list({p.title: p for question in questions for p in question.paragraphs}.values())


@contextmanager
def chat_server(port: int, *, endpoint: str | None, project: str, source: str | None) -> Iterator[subprocess.Popen]:
    """Run `adk web` on loopback until the block ends; every message becomes a trace, exported when `endpoint` is given.

    ADK's server builds its own tracer provider from OpenTelemetry's environment variables; the agent's package adds
    OpenInference's instrumentation to it.
    """
    environment = os.environ | {"OTEL_SERVICE_NAME": "observer-agent-chat"}
    environment["OTEL_RESOURCE_ATTRIBUTES"] = f"openinference.project.name={project}"
    if endpoint:
        from observer_pipeline.agent.tracing import traces_url

        environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = traces_url(endpoint)
    if source:
        environment[SOURCE_VARIABLE] = str(Path(source).resolve())
    command = [sys.executable, "-m", "google.adk.cli", "web", str(AGENTS_FOLDER), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--session_service_uri", "memory://", "--no_use_local_storage"]
    process = subprocess.Popen(command, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_port(port: int) -> None:
    """Raises InputError when something listens on the port already."""
    import socket

    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"port {port} is in use; choose another with --port")
