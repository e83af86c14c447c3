"""Memory of open traces, and what one huge trace does to its neighbours.

    python benchmarks/assembly.py

Memory: 100,000 open ten-span traces in the assembler of a process of its own; the growth of its resident set over the
raw bytes of their spans. Neighbours: an engine with real files and threads, in a process like the service's, gets small
traces at a steady pace, once alone and once while a 50,000-span trace comes in between in batches of 500, is kept and
goes to a back end; compared is the time from the last span of a small trace to its decision, less the quiet period.
Rounds with and without the huge trace alternate.
"""

import argparse
import multiprocessing
import secrets
import statistics
import tempfile
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_core.decisions import Decision
from observer_core.home import Home
from observer_serving.app import App
from observer_serving.assemble import Assembler, AssemblyLimits
from observer_serving.buffer.protocol import Logged
from observer_serving.buffer.received import Received
from observer_serving.candidate import Candidate
from observer_serving.config import Settings
from observer_serving.process import tune
from observer_serving.receive.wire import Piece, cut

QUIET = 0.2


def spans_of(trace_id: bytes, count: int, *, root: bool, chars: int = 300) -> list[Piece]:
    """Spans of one trace, cut as the receiver does."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = "agent"
    scope_spans = resource_spans.scope_spans.add()
    now = time.time_ns()
    for number in range(count):
        span = scope_spans.spans.add(
            trace_id=trace_id,
            span_id=secrets.token_bytes(8),
            parent_span_id=b"" if root and number == 0 else b"parent00",
            name="step",
            start_time_unix_nano=now,
            end_time_unix_nano=now,
        )
        span.attributes.add(key="input.value").value.string_value = "x" * chars
    return cut(request, request.SerializeToString()).pieces


def memory(traces: int, out: "SimpleQueue[tuple[int, int]]") -> None:
    assembler = Assembler(AssemblyLimits(timeout=3600, max_open_traces=traces + 1, max_total_bytes=64 << 30))
    before = psutil.Process().memory_info().rss
    raw = 0
    for number in range(traces):
        for piece in spans_of(secrets.token_bytes(16), 10, root=False):
            raw += len(piece.data)
            assembler.add(piece, received_ns=number, segment=1, now=0.0)
    out.put((psutil.Process().memory_info().rss - before, raw))


class _TakesAll(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None: ...


def back_end(out: "SimpleQueue[int]") -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _TakesAll)
    out.put(server.server_port)
    server.serve_forever()


def neighbours(home: str, port: int, huge: int, seconds: float, out: "SimpleQueue[list[float]]") -> None:
    settings = Settings.model_validate(
        {
            "listen": {"api": None, "otlp_http": None, "otlp_grpc": None},
            "assembly": {"quiet_period": f"{int(QUIET * 1000)}ms", "timeout": "10m", "max_spans": 100_000},
            "policy": {
                "keep_threshold": 1.0,
                "random_share": 0.0,
                "min_share": None,
                "rules": [{"name": "huge", "when": {"min_spans": 1000}, "keep": 1}],
            },
            "exporters": [{"name": "back-end", "endpoint": f"http://127.0.0.1:{port}/v1/traces"}],
        }
    )
    tune()
    app = App(settings, Home(Path(home)))
    sent: dict[str, float] = {}
    late: list[float] = []

    def note(decision: Decision, _: Candidate) -> None:
        if decision.trace_id in sent:  # else it is the huge one
            late.append(time.perf_counter() - sent[decision.trace_id] - QUIET)

    app.engine._on_decided = [note]
    big = secrets.token_bytes(16)
    batches = deque(spans_of(big, 500, root=first == 0) for first in range(0, huge, 500))
    for exporter in app.exporters:
        exporter.start()
    app.scoring.start()
    app.engine.start()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        trace_id = secrets.token_bytes(16)
        pieces = spans_of(trace_id, 10, root=True)
        sent[trace_id.hex()] = time.perf_counter()
        app.engine.accept([Logged(1, Received(time.time_ns(), tuple(pieces)))])
        if batches:
            app.engine.accept([Logged(1, Received(time.time_ns(), tuple(batches.popleft())))])
        time.sleep(0.01)
    while len(late) < len(sent):
        time.sleep(0.1)
    decision = app.record.get(big.hex())
    assert (decision is not None and decision.decision == "keep") == bool(huge)
    out.put(sorted(late))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    process = context.Process(target=memory, args=(options.traces, out))
    process.start()
    grown, raw = out.get()
    process.join()
    print(f"{options.traces:,} open traces: {grown / raw:.2f} times their {raw / 1e6:.0f} MB (wanted at most 2.5)")
    ports: SimpleQueue[int] = context.SimpleQueue()
    context.Process(target=back_end, args=(ports,), daemon=True).start()
    port = ports.get()
    rises: list[float] = []
    for number in range(options.rounds):
        p99: list[float] = []
        for huge in (0, 50_000):
            with tempfile.TemporaryDirectory() as home:
                process = context.Process(target=neighbours, args=(home, port, huge, options.seconds, out))
                process.start()
                waits = [wait * 1000 for wait in out.get()]
                process.join()
            p99.append(waits[int(len(waits) * 0.99)])
            print(
                f"round {number + 1}, beside {huge:,} spans: median {statistics.median(waits):.1f} ms, "
                f"p95 {waits[int(len(waits) * 0.95)]:.1f}, p99 {p99[-1]:.1f}, longest {waits[-1]:.1f} "
                f"({len(waits)} small traces)"
            )
        rises.append(p99[1] - p99[0])
    print(
        f"p99 rises by {statistics.median(rises):.1f} ms (median of {options.rounds}; "
        f"{min(rises):.1f} to {max(rises):.1f}; wanted at most 50)"
    )


if __name__ == "__main__":
    main()
