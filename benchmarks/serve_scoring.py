"""Traces per second scored by the service, against the bare loop over the same model.

    python benchmarks/serve_scoring.py --run runs/my-run --data traces.jsonl

The loop scores batches of the service's size and does nothing else. The service gets the same traces as OTLP spans over
HTTP, writes them to its log, assembles, normalises, scores, decides and records them. Both run in processes of their
own, in turns, and have scored a batch before; the service has had two seconds then for what it imports behind its
start. Printed is the best round of each by wall and by CPU time, and the ratios. It is meant for models that cost
milliseconds; beside the baseline, which costs microseconds, everything else dominates.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import httpx
import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_core.decision.load import load_scorer
from observer_core.home import Home
from observer_core.rundir import open_run
from observer_core.traces.jsonl import read_jsonl
from observer_core.traces.to_spans import trace_to_spans
from observer_core.traces.trace import Trace
from observer_serving.app import create_app
from observer_serving.config import Settings

BATCH = 32
PER_REQUEST = 25
SETTLE_SECONDS = 2.0

Rate = tuple[float, float]
"""Traces per second of wall time, and per second of CPU time of the process (all its threads)."""


def bare_loop(run: Path, traces: list[Trace], out: "SimpleQueue[Rate]") -> None:
    """The model alone."""
    scorer = load_scorer(open_run(run))
    scorer.score(traces[:BATCH])  # the first call allocates
    started, cpu = time.perf_counter(), time.process_time()
    for first in range(0, len(traces), BATCH):
        scorer.score(traces[first : first + BATCH])
    out.put((len(traces) / (time.perf_counter() - started), len(traces) / (time.process_time() - cpu)))


def service(run: Path, home: str, out: "SimpleQueue[str]") -> None:
    settings = Settings.model_validate(
        {
            "listen": {"api": "127.0.0.1:0", "otlp_http": "127.0.0.1:0", "otlp_grpc": None},
            "scorer": {"kind": "local", "run": str(run), "deadline": "1h", "max_batch": BATCH},
            "assembly": {"quiet_period": "1ms", "timeout": "60s"},
        }
    )
    app = create_app(settings, Home(Path(home)))
    asyncio.run(app.run(on_ready=lambda ready: out.put(f"{ready.addresses['api']} {ready.addresses['otlp_http']}")))


def through_the_service(run: Path, traces: list[Trace]) -> Rate:
    """From the first request to the last decision."""
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as home:
        process = context.Process(target=service, args=(run, home, out), daemon=True)
        process.start()
        api, otlp = out.get().split()
        with httpx.Client(timeout=60) as client:
            _send(client, otlp, _requests(traces[:BATCH]))  # the first call allocates
            _wait_for(client, api, BATCH)
            requests = _requests(traces)
            time.sleep(SETTLE_SECONDS)
            used = psutil.Process(process.pid).cpu_times()
            started = time.perf_counter()
            _send(client, otlp, requests)
            _wait_for(client, api, BATCH + len(traces))
            seconds = time.perf_counter() - started
            now = psutil.Process(process.pid).cpu_times()
        process.terminate()
        process.join()
    return len(traces) / seconds, len(traces) / (now.user + now.system - used.user - used.system)


def _unnamed(trace: Trace) -> Trace:
    """The trace without its id: sent twice it is two traces."""
    return Trace(trace.question, trace.final_answer, None, trace.tool_calls, trace.evidence)


def _requests(traces: list[Trace]) -> list[bytes]:
    """Export requests of these traces, each under a new id."""
    return [
        ExportTraceServiceRequest(
            resource_spans=[
                trace_to_spans(_unnamed(trace), project=None, now_ns=time.time_ns())
                for trace in traces[first : first + PER_REQUEST]
            ]
        ).SerializeToString()
        for first in range(0, len(traces), PER_REQUEST)
    ]


def _send(client: httpx.Client, otlp: str, requests: list[bytes]) -> None:
    for body in requests:
        headers = {"content-type": "application/x-protobuf"}
        answer = client.post(f"http://{otlp}/v1/traces", content=body, headers=headers)
        assert answer.status_code == 200, answer.text


def _wait_for(client: httpx.Client, api: str, decisions: int) -> None:
    while client.get(f"http://{api}/v1/stats").json()["decisions_on_record"] < decisions:
        time.sleep(0.1)  # asking takes the service a millisecond


def _best(a: Rate, b: Rate) -> Rate:
    return max(a[0], b[0]), max(a[1], b[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a run directory")
    parser.add_argument("--data", type=Path, required=True, help="traces as JSONL")
    parser.add_argument("--traces", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    traces = [_unnamed(trace) for trace in read_jsonl(options.data, skip_invalid=True)[: options.traces]]
    context = multiprocessing.get_context("spawn")
    bare: Rate = (0.0, 0.0)
    served: Rate = (0.0, 0.0)
    for _ in range(options.rounds):
        out = context.SimpleQueue()
        process = context.Process(target=bare_loop, args=(options.run, traces, out), daemon=True)
        process.start()
        bare = _best(bare, out.get())
        process.join()
        served = _best(served, through_the_service(options.run.resolve(), traces))
    print(f"{len(traces)} traces, batches of {BATCH}, run {options.run}")
    for name, (wall, cpu) in (("bare loop", bare), ("service", served)):
        print(f"{name:10} {wall:8.1f} traces/s   {cpu:8.1f} traces per CPU second")
    print(f"ratio      {served[0] / bare[0]:8.2f} wall       {served[1] / bare[1]:8.2f} CPU")


if __name__ == "__main__":
    main()
