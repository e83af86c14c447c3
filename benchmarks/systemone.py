"""Requests per second of `observer systemone` under concurrent clients, against the bare loop over the same model.

    python benchmarks/systemone.py --run runs/my-run --data traces.jsonl

The loop plans and runs one request after the other and does nothing else. The server gets the same requests as JSON
over HTTP from 32 clients, each sending its next one when the last is answered, and computes what waits in batches. Both
run in processes of their own, in turns, after a warm-up; printed are the best round of each by wall and by CPU time,
the ratios, the latencies the clients saw, and the peak memory of each process.
"""

import argparse
import asyncio
import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil

from observer_core.decision.load import open_model
from observer_core.questions import Question
from observer_core.rundir import open_run
from observer_core.slices import StateBuilder
from observer_core.traces.jsonl import read_jsonl
from observer_serving.systemone.app import SystemOne
from observer_serving.systemone.card import ModelCard
from observer_serving.systemone.limits import Limits
from observer_serving.systemone.server import SystemOneServer, open_socket

WARM_UP = 8


@dataclass
class Round:
    """What one round came to; `peak_mb` is the process's largest resident size."""

    seconds: float
    cpu: float
    peak_mb: float
    latencies_ms: list[float] = field(default_factory=list)


def peak_mb(pid: int | str = "self") -> float:
    """The largest resident size of a process so far (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def bare_loop(run: Path, bodies: list[bytes], out: "SimpleQueue[Round]") -> None:
    """The model alone."""
    model = open_model(open_run(run))
    requests = []
    for body in map(orjson.loads, bodies):
        requests.append((body["state"], {name: Question(**asked) for name, asked in body["questions"].items()}))
    for state, questions in requests[:WARM_UP]:
        model.run([model.plan(state, questions)])
    started, cpu = time.perf_counter(), time.process_time()
    for state, questions in requests:
        model.run([model.plan(state, questions)])
    out.put(Round(time.perf_counter() - started, time.process_time() - cpu, peak_mb()))


def serve(run: Path, limits: Limits, out: "SimpleQueue[int]") -> None:
    opened = open_run(run)
    sock = open_socket("127.0.0.1", 0, has_key=False)
    app = SystemOne(open_model(opened), ModelCard.of(opened), limits=limits, truncate=True)
    asyncio.run(SystemOneServer(app, sock).run(on_ready=lambda _: out.put(sock.getsockname()[1])))


async def ask_all(port: int, bodies: list[bytes], clients: int) -> list[float]:
    """The milliseconds each request took, all of them answered with 200."""
    waiting = list(reversed(bodies))
    took: list[float] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while waiting:
            body = waiting.pop()
            started = time.perf_counter()
            writer.write(b"POST /v1/systemone HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            took.append((time.perf_counter() - started) * 1000)
        writer.close()

    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    await asyncio.gather(*(client(*pair) for pair in opened))
    return took


def through_the_server(run: Path, bodies: list[bytes], limits: Limits, clients: int) -> Round:
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    process = context.Process(target=serve, args=(run, limits, out), daemon=True)
    process.start()
    port = out.get()
    asyncio.run(ask_all(port, bodies[:WARM_UP], 1))
    used = psutil.Process(process.pid).cpu_times()
    started = time.perf_counter()
    took = asyncio.run(ask_all(port, bodies, clients))
    seconds = time.perf_counter() - started
    now = psutil.Process(process.pid).cpu_times()
    made = Round(seconds, now.user + now.system - used.user - used.system, peak_mb(process.pid or 0), took)
    process.terminate()
    process.join()
    return made


def alone(run: Path, bodies: list[bytes]) -> Round:
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    process = context.Process(target=bare_loop, args=(run, bodies, out), daemon=True)
    process.start()
    made = out.get()
    process.join()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a run directory")
    parser.add_argument("--data", type=Path, required=True, help="traces as JSONL; their states are asked about")
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-batch-tokens", type=int, default=Limits().batch_tokens)
    options = parser.parse_args()
    run = open_run(options.run)
    manifest = run.manifest
    questions: dict[str, Any] = {name: question.model_dump() for name, question in manifest.questions.items()}
    traces = read_jsonl(options.data, skip_invalid=True)[: options.requests]
    builder = StateBuilder(manifest.slice_spec, run.tokenizer)
    states = [builder.build(trace).text for trace in traces]
    bodies = [orjson.dumps({"model": "jev-latest", "state": state, "questions": questions}) for state in states]
    limits = Limits(batch_tokens=options.max_batch_tokens)
    rounds: dict[str, list[Round]] = {"bare loop": [], "server": []}
    for _ in range(options.rounds):
        rounds["bare loop"].append(alone(options.run, bodies))
        rounds["server"].append(through_the_server(options.run, bodies, limits, options.clients))
    print(f"{len(bodies)} requests of {len(questions)} questions, {options.clients} clients, run {options.run}")
    best = {}
    for name, made in rounds.items():
        best[name] = min(one.seconds for one in made), min(one.cpu for one in made)
        wall, cpu = (len(bodies) / figure for figure in best[name])
        peak = max(one.peak_mb for one in made)
        print(f"{name:10} {wall:8.1f} requests/s  {cpu:8.1f} requests per CPU second  peak {peak:6.0f} MB")
    wall, cpu = (best["bare loop"][i] / best["server"][i] for i in (0, 1))
    print(f"ratio      {wall:8.2f} wall        {cpu:8.2f} CPU")
    fastest = min(rounds["server"], key=lambda one: one.seconds)
    p50, p95 = np.percentile(fastest.latencies_ms, (50, 95))
    print(f"latency of the server's best round: p50 {p50:.0f} ms, p95 {p95:.0f} ms")


if __name__ == "__main__":
    main()
