"""The agent in ADK's chat UI, and the questions it can be asked."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from observer_core.errors import InputError
from observer_pipeline.agent.models.choose import check_model
from observer_pipeline.agent.questions import AgentQuestion, Paragraph
from observer_pipeline.agent.sources import read_questions
from observer_pipeline.agent.world import generate_world

AGENTS_FOLDER = Path(__file__).with_name("chat_agents")
SOURCE_VARIABLE = "OBSERVER_CHAT_SOURCE"
MODEL_VARIABLE = "OBSERVER_CHAT_MODEL"
"""How the command tells the agent, which ADK's server loads by itself, what it was given."""
SAMPLE_QUESTIONS = 40

_Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


def sample_questions(source: str | None) -> list[AgentQuestion]:
    """The questions a chat or a single run can be asked: of a HotpotQA file, else of the generated world."""
    return read_questions(source) if source else list(generate_world(SAMPLE_QUESTIONS, seed=0))


def all_paragraphs(questions: list[AgentQuestion]) -> list[Paragraph]:
    """The paragraphs of all questions, each title once."""
    return list({p.title: p for question in questions for p in question.paragraphs}.values())


def serve_chat(
    port: int,
    *,
    endpoint: str | None,
    project: str,
    source: str | None,
    model: str,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Serve ADK's chat UI on loopback until interrupted; every message becomes a trace, exported to `endpoint`.

    Args:
        announce: called once nothing stands in the way any more.

    Raises:
        InputError: the port is in use, no receiver answers at `endpoint`, or there is no such model.
    """
    _check_port(port)
    check_model(model)
    import uvicorn
    from google.adk.cli.fast_api import get_fast_api_app

    from observer_pipeline.agent.endpoint import probe_endpoint
    from observer_pipeline.agent.tracing import install_tracing

    if endpoint:
        probe_endpoint(endpoint)
    announce()
    tracing = install_tracing(service_name="observer-agent-chat", project=project, endpoint=endpoint)

    @contextlib.asynccontextmanager
    async def flush_at_shutdown(_app: Any) -> AsyncIterator[None]:
        yield
        tracing.flush()  # uvicorn ends the process by the signal it got, so nothing after it would run

    os.environ[MODEL_VARIABLE] = model
    if source:
        os.environ[SOURCE_VARIABLE] = str(Path(source).resolve()) if Path(source).exists() else source
    app = get_fast_api_app(
        agents_dir=str(AGENTS_FOLDER),
        session_service_uri="memory://",
        artifact_service_uri="memory://",
        web=True,
        port=port,
        lifespan=flush_at_shutdown,
    )
    uvicorn.run(_without_http_spans(app), host="127.0.0.1", port=port, log_level="warning")


def _without_http_spans(app: _Asgi) -> _Asgi:
    """Keep FastAPI from tracing the UI's requests: they would become traces of their own, and roots of the agent's."""

    async def wrapped(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app(scope | {"fastapi.telemetry": None} if scope["type"] != "lifespan" else scope, receive, send)

    return wrapped


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"port {port} is in use; choose another with --port")
