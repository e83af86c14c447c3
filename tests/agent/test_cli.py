"""`observer agent` as a user calls it."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from agent_runs import Receiver

from observer_core.traces.normalise import normalise
from observer_pipeline.agent.chat import sample_questions

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


@pytest.mark.heavy
def test_every_chat_message_becomes_one_trace_that_reads_back(receiver: Receiver) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*OBSERVER, "chat", "--port", str(port), "--endpoint", receiver.url]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        base = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                assert httpx.get(f"{base}/list-apps").json() == ["researcher"]
                break
            except httpx.TransportError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.5)
        httpx.post(f"{base}/apps/researcher/users/u/sessions/s", json={}).raise_for_status()
        question = sample_questions(None)[0].question
        message = {"role": "user", "parts": [{"text": question}]}
        body = {"app_name": "researcher", "user_id": "u", "session_id": "s", "new_message": message}
        events = httpx.post(f"{base}/run", json=body, timeout=60).raise_for_status().json()
    finally:
        server.terminate()
        printed = server.communicate(timeout=60)[0]
    assert "Ask for example" in printed
    (spans,) = receiver.by_trace().values()  # the UI's own requests are no traces
    read = normalise(spans)
    assert read.complete
    assert read.trace.question == question
    assert read.trace.final_answer == events[-1]["content"]["parts"][0]["text"]
