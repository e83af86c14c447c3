"""More work than there is time for, clients that leave, a model that fails, and the end of the server."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from systemone.harness import NOUL, ScriptedModel, Served, body, serving
from typer.testing import CliRunner

from observer_core.errors import InputError
from observer_core.questions import default_questions
from observer_core.rundir import Manifest, RunDirectory, seal
from observer_pipeline.cli import build_app


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def raw_request(data: bytes, *, length: int | None = None) -> bytes:
    head = f"POST /v1/systemone HTTP/1.1\r\nhost: test\r\ncontent-length: {length or len(data)}\r\n\r\n"
    return head.encode() + data


def connect(server: Served) -> socket.socket:
    url = httpx.URL(server.url)
    return socket.create_connection((url.host, url.port), timeout=30)


def open_requests(server: Served) -> float:
    return server.metric("open_requests")


def test_above_the_bound_clients_are_told_when_to_come_back(model: ScriptedModel):
    with serving(model, waiting=4) as server, ThreadPoolExecutor(4) as clients:
        taken_in = [clients.submit(server.post, body(state=f"HANG {i}")) for i in range(4)]
        until(lambda: open_requests(server) == 4)
        refused = server.post(body())
        assert refused.status_code == 503
        assert refused.json()["detail"]["error_type"] == "overloaded"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        model.go.set()
        assert {answer.result().status_code for answer in taken_in} == {200}
        assert server.post(body()).status_code == 200


def test_few_large_requests_are_too_many_too(model: ScriptedModel):
    large = {f"q{i}": NOUL for i in range(4)}  # 40 tokens
    with serving(model, request_tokens=40) as server, ThreadPoolExecutor(4) as clients:
        taken_in = [clients.submit(server.post, body(large, state=f"HANG {i}")) for i in range(4)]
        until(lambda: server.app._computing.backlog == 160)
        refused = server.post(body())
        assert (refused.status_code, refused.json()["detail"]["error_type"]) == (503, "overloaded")
        model.go.set()
        assert {answer.result().status_code for answer in taken_in} == {200}
        until(lambda: server.app._computing.backlog == 0)
        assert server.post(body()).status_code == 200


def test_what_gathers_while_the_model_computes_is_computed_together_within_the_budget(model: ScriptedModel):
    with serving(model, batch_tokens=50) as server, ThreadPoolExecutor(8) as clients:
        first = clients.submit(server.post, body(state="HANG"))
        assert model.began.wait(30)
        rest = [clients.submit(server.post, body(state=f"{i}")) for i in range(7)]
        until(lambda: len(server.app._computing._waiting) == 7)
        model.go.set()
        assert {answer.result().status_code for answer in [first, *rest]} == {200}
    assert [len(batch) for batch in model.batches] == [1, 5, 2]


def test_clients_that_leave_free_their_places_and_are_never_computed(model: ScriptedModel):
    with serving(model, waiting=4) as server, ThreadPoolExecutor(4) as clients:
        first = clients.submit(server.post, body(state="HANG"))
        assert model.began.wait(30)
        leaving = [connect(server) for _ in range(3)]
        for connection in leaving:
            connection.sendall(raw_request(json.dumps(body(state="gone")).encode()))
        until(lambda: open_requests(server) == 4)
        for connection in leaving:
            connection.close()
        until(lambda: open_requests(server) == 1)
        model.go.set()
        assert first.result().status_code == 200
        assert server.post(body(state="after")).status_code == 200
        assert server.metric('requests_total{status="499"}') == 3
    assert model.batches == [["HANG"], ["after"]]


def test_equal_requests_under_way_are_computed_once(model: ScriptedModel):
    with serving(model) as server, ThreadPoolExecutor(6) as clients:
        first = clients.submit(server.post, body(state="HANG"))
        assert model.began.wait(30)
        same = [clients.submit(server.post, body(state="HANG")) for _ in range(3)]
        rest = [clients.submit(server.post, body(state="HANG", questions={name: NOUL})) for name in ("r", "s")]
        leaving = connect(server)
        leaving.sendall(raw_request(json.dumps(body(state="HANG")).encode()))
        until(lambda: open_requests(server) == 7)
        leaving.close()
        until(lambda: open_requests(server) == 6)
        model.go.set()
        answers = [answer.result() for answer in (first, *same, *rest)]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers[:4]}) == 1
        assert [list(answer.json()["answers"]) for answer in answers[4:]] == [["r"], ["s"]]
        assert server.post(body(state="HANG")).status_code == 200  # nothing is kept once it is answered
    assert sum(len(batch) for batch in model.batches) == 4


def test_slow_clients_hold_up_nobody_and_are_sent_away(model: ScriptedModel):
    with serving(model, waiting=4, read=0.5) as server:
        slow = [connect(server) for _ in range(3)]
        for connection in slow:
            connection.sendall(raw_request(b'{"model"', length=5000))
        until(lambda: open_requests(server) == 3)
        assert server.post(body()).status_code == 200
        for connection in slow:
            answer = b"".join(iter(lambda: connection.recv(4096), b""))  # to the end: the server closes  # noqa: B023
            assert answer.startswith(b"HTTP/1.1 408")
            connection.close()
        until(lambda: open_requests(server) == 0)


def test_an_answer_that_takes_too_long_is_given_up(model: ScriptedModel):
    with serving(model, deadline=0.2) as server, ThreadPoolExecutor(2) as clients:
        hanging = clients.submit(server.post, body(state="HANG"))
        until(lambda: model.batches == [["HANG"]])
        for answer in (hanging, clients.submit(server.post, body(state="behind it"))):
            assert (answer.result().status_code, answer.result().json()["detail"]["error_type"]) == (503, "timeout")
            assert answer.result().headers["retry-after"]
        model.go.set()
        assert server.post(body(state="after")).status_code == 200
    assert ["behind it"] not in model.batches


@pytest.mark.parametrize("fault", ["NAN", "RAISE"])
def test_a_fault_of_the_model_costs_its_own_request_only(model: ScriptedModel, fault: str):
    with serving(model) as server, ThreadPoolExecutor(4) as clients:
        first = clients.submit(server.post, body(state="HANG"))
        assert model.began.wait(30)
        states = ["a", fault, "b"]
        rest = [clients.submit(server.post, body(state=state)) for state in states]
        until(lambda: len(server.app._computing._waiting) == 3)
        model.go.set()
        assert first.result().status_code == 200
        answers = dict(zip(states, (answer.result() for answer in rest), strict=True))
        assert (answers["a"].status_code, answers["b"].status_code) == (200, 200)
        assert answers[fault].status_code == 500
        detail = answers[fault].json()["detail"]
        assert detail["error_type"] == "unknown"
        assert (
            "distribution" in detail["message"]
            if fault == "NAN"
            else answers[fault].headers["x-typesafe-request-id"] in detail["message"]
        )


def test_a_storm_of_clients_is_answered_to_the_last_one(model: ScriptedModel):
    """Every one of them gets its own answer or is told when to come back; none waits for ever."""

    async def storm(url: str) -> list[tuple[int, bool]]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits) as client:

            async def one(i: int) -> tuple[int, bool]:
                answer = await client.post("/v1/systemone", json=body({f"q{i}": NOUL}, state=str(i)))
                if answer.status_code == 200:
                    return 200, answer.json()["answers"].keys() == {f"q{i}"}
                return answer.status_code, "retry-after" in answer.headers

            return await asyncio.gather(*map(one, range(300)))

    model.go.set()
    with serving(model, waiting=8) as server:
        outcomes = asyncio.run(storm(server.url))
        assert {status for status, _ in outcomes} <= {200, 503}
        assert all(right for _, right in outcomes)
        assert (200, True) in outcomes
        assert open_requests(server) == 0
        assert server.post(body()).status_code == 200


def test_the_end_answers_what_was_taken_in(model: ScriptedModel):
    with ThreadPoolExecutor(4) as clients:
        with serving(model) as server:
            taken_in = [clients.submit(server.post, body(state=f"HANG {i}")) for i in range(3)]
            half_sent, request = connect(server), raw_request(json.dumps(body()).encode())
            half_sent.sendall(request[:-10])
            until(lambda: open_requests(server) == 4)
            server.stop.set()
            until(lambda: server.client.get("/healthz").status_code == 503)
            late = server.post(body())
            assert (late.status_code, late.json()["detail"]["error_type"]) == (503, "overloaded")
            model.go.set()
            assert {answer.result().status_code for answer in taken_in} == {200}
            half_sent.sendall(request[-10:])
            assert half_sent.recv(100).startswith(b"HTTP/1.1 200")
            half_sent.close()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz")


def test_the_command_serves_a_run_until_it_is_told_to_stop(long_laya: RunDirectory):
    options = ["--run", str(long_laya.path), "--port", "0", "--max-body", "1MiB"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from observer_pipeline.cli import main; main()", "systemone", *options],
        env=os.environ | {"OBSERVER_SYSTEMONE_KEY": "s3cret"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        name, *_, url = process.stdout.readline().split()
        assert name == f"laya-long@{long_laya.version}"
        assert httpx.post(f"{url}/v1/systemone", json=body()).status_code == 403
        answer = httpx.post(f"{url}/v1/systemone", json=body(), headers={"authorization": "Bearer s3cret"})
        assert answer.json()["model"] == name
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines; set a key"),
        (["--port", "TAKEN"], "give another --port"),
        (["--key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE holds no usable key"),
        (["--key-file", "/no/such/file"], "cannot read the key file"),
        (["--deadline", "60"], "is not a duration"),
        (["--run", "BASELINE"], "answers no questions; name one of"),
    ],
)
def test_what_cannot_be_served_is_told_before_anything_is_loaded(
    options: list[str], said: str, long_laya: RunDirectory, tmp_path: Path
):
    baseline = seal(tmp_path, Manifest(family="baseline", model="baseline", questions=default_questions()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"TAKEN": str(taken.getsockname()[1]), "BASELINE": str(baseline.path)}
        options = ["--run", str(long_laya.path), "--port", "0", *(given.get(option, option) for option in options)]
        done = CliRunner().invoke(build_app(), ["systemone", *options])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
