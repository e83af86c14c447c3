"""`observer agent` as a user calls it."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_runs import Receiver
from model_servers import OllamaServer
from phoenix_server import free_port
from playwright.sync_api import sync_playwright
from serving.harness import Service

from observer_core.traces.normalise import normalise
from observer_pipeline.agent.chat import sample_questions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OBSERVER = (sys.executable, "-m", "observer_pipeline.cli", "agent")


def observer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OBSERVER, *arguments], capture_output=True, text=True, check=False)


def test_run_answers_a_sample_question_and_exports_its_trace(receiver: Receiver) -> None:
    question = sample_questions(None)[0].question
    done = observer("run", question, "--endpoint", receiver.url, "--json")
    assert done.returncode == 0, done.stderr
    trace = json.loads(done.stdout)
    assert trace["question"] == question
    assert trace["tool_calls"]
    (spans,) = receiver.by_trace().values()
    assert normalise(spans).trace.final_answer == trace["final_answer"]


def test_bad_input_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = observer("generate", "--questions", "1", "--out", str(tmp_path), "--faults", "natural")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "exists already" in done.stderr


def test_a_run_that_cannot_be_made_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = observer("run", " ")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the question is empty" in done.stderr
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    done = observer("run", "Where?", "--model", "ollama:qwen2.5:7b")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)  # and no stack trace of ADK's
    assert "no answer from Ollama" in done.stderr


def test_a_chat_on_a_taken_port_names_no_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*OBSERVER, "chat", "--port", str(port)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {port} is in use" in done.stderr


@contextlib.contextmanager
def chat(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`observer agent chat` as a process of its own; yields its address once it answers."""
    port = free_port()
    command = [*OBSERVER, "chat", "--port", str(port), *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        base = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 240
        while True:
            try:
                assert httpx.get(f"{base}/list-apps").json() == ["researcher"]
                break
            except httpx.TransportError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.5)
        yield base, server
    finally:
        server.terminate()
        server.wait(timeout=60)


def say(base: str, session: str, text: str) -> list[dict]:
    """Send a message as the UI does; returns ADK's events."""
    httpx.post(f"{base}/apps/researcher/users/u/sessions/{session}", json={})
    message = {"role": "user", "parts": [{"text": text}]}
    body = {"app_name": "researcher", "user_id": "u", "session_id": session, "new_message": message}
    return httpx.post(f"{base}/run", json=body, timeout=120).raise_for_status().json()


@pytest.mark.heavy
def test_every_chat_message_becomes_one_trace_that_reads_back(receiver: Receiver) -> None:
    questions = [question.question for question in sample_questions(None)[:2]]
    with chat("--endpoint", receiver.url) as (base, server):
        assert httpx.get(f"{base}/dev-ui/").status_code == 200
        events = [say(base, "s", question) for question in questions]  # two turns of one session
        server.terminate()
        printed = server.communicate(timeout=60)[0]
    assert "Ask for example" in printed
    reads = [normalise(spans) for spans in receiver.by_trace().values()]  # the UI's own requests are no traces
    assert [read.trace.question for read in reads] == questions
    for read, said in zip(reads, events, strict=True):
        assert read.complete
        assert read.trace.final_answer == "".join(part.get("text", "") for part in said[-1]["content"]["parts"])


FEWEST_SPANS = 5
"""Of a message that is answered by reading: the root, the agent, the model's two turns, and a call between them."""


@pytest.mark.heavy
def test_a_running_service_scores_every_message(tmp_path: Path) -> None:
    service = Service(tmp_path / "home", {"exporters": []}).start()
    try:
        question = sample_questions(None)[0].question
        with chat("--endpoint", service.otlp_http) as (base, _):
            say(base, "s", question)
            deadline = time.monotonic() + 120
            while not (decisions := service.get("/v1/decisions")["decisions"]):
                assert time.monotonic() < deadline
                time.sleep(0.5)
        [decision] = decisions
        assert 0 <= decision["p_wrong"] <= 1
        assert (decision["project"], decision["complete_reason"]) == ("observer", "root_ended")
        assert decision["spans"] >= FEWEST_SPANS
    finally:
        service.terminate()


@pytest.mark.heavy
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)")
def test_messages_typed_into_the_chat_are_answered_there_and_scored(tmp_path: Path) -> None:
    questions = [question.question for question in sample_questions(None)[:2]]
    service = Service(tmp_path / "home", {"exporters": []}).start()
    try:
        with chat("--endpoint", service.otlp_http) as (base, _), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(base)
            for number, question in enumerate(questions, 1):
                page.locator("textarea:visible").first.fill(question)
                page.locator("textarea:visible").first.press("Enter")
                # The agent's turns: at least one call, its result, and the answer.
                page.wait_for_function(
                    "n => document.body.innerText.split('robot_2').length - 1 > 3 * n", arg=number, timeout=60_000
                )
            browser.close()
            service.wait_for_decisions(2)
        decisions = service.get("/v1/decisions")["decisions"]
        assert [(d["complete_reason"], d["spans"] >= FEWEST_SPANS) for d in decisions] == [("root_ended", True)] * 2
        assert all(0 <= d["p_wrong"] <= 1 for d in decisions)
    finally:
        service.terminate()


@pytest.mark.heavy
def test_the_chat_runs_on_a_served_model(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with OllamaServer(["Tarnholm"]) as ollama:
        monkeypatch.setenv("OLLAMA_HOST", ollama.url)
        with chat("--endpoint", receiver.url, "--model", "ollama:qwen2.5:7b") as (base, _):
            assert say(base, "s", "Where?")[-1]["content"]["parts"][0]["text"] == "Tarnholm"
        assert ollama.requests[0]["messages"][-1]["content"] == "Where?"


def test_the_chat_says_what_is_wrong_before_it_starts() -> None:
    done = observer("chat", "--endpoint", "http://127.0.0.1:9", "--port", str(free_port()))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no OTLP receiver" in done.stderr
    done = observer("chat", "--no-export", "--model", "gpt", "--port", str(free_port()))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unknown model" in done.stderr
