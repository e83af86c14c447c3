"""Spans per second received durably, against servers on the same stack that do next to nothing.

    python benchmarks/receive.py

Three comparisons: 50-trace protobuf batches against a receiver that parses and throws away; single-trace requests
against a bare ASGI echo of the same body; 50-trace JSON batches against protobuf ones. All servers run as processes of
their own under uvicorn, httptools and uvloop and get their requests in turns, so that what else the machine does hits
all. Each connection has one request under way: batches come over `--connections`, single traces over
`--single-connections` (a request waits for the disk, so that few clients measure the disk and not the service).
The service writes every request to its log and syncs it before it answers. Assembly is part of the figure, scoring is
not: traces stay open through their turn and the next one and are then let go undecided, so that their memory is used
again as it is where traces are decided; with `--hold` none goes, and each page is one the process never had before.

Printed are spans per second of wall time in the best round and over all rounds, spans per second of the server's CPU
time over all rounds (its clock ticks too coarsely for one), the client's share of a core, and the ratios.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import secrets
import selectors
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_core.home import Home
from observer_core.traces.otlp_json import dump_json_message
from observer_serving.app import create_app
from observer_serving.config import Settings
from observer_serving.process import serve

SPANS, ATTRIBUTES = 10, 10
PROTOBUF, JSON = "application/x-protobuf", "application/json"


def make_batch(traces: int, value_chars: int) -> tuple[ExportTraceServiceRequest, list[bytes]]:
    """A request of ten-span traces, and its trace ids, to be replaced by fresh ones of equal length."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = "agent"
    scope_spans = resource_spans.scope_spans.add()
    ids = [secrets.token_bytes(16) for _ in range(traces)]
    for trace_id in ids:
        root = secrets.token_bytes(8)
        for number in range(SPANS):
            span = scope_spans.spans.add(
                trace_id=trace_id,
                span_id=root if number == 0 else secrets.token_bytes(8),
                parent_span_id=b"" if number == 0 else root,
                name="step",
                start_time_unix_nano=time.time_ns(),
                end_time_unix_nano=time.time_ns(),
            )
            for key in range(ATTRIBUTES):
                span.attributes.add(key=f"llm.attribute.{key}").value.string_value = "x" * value_chars
    return request, ids


@dataclass(frozen=True)
class Load:
    """What one round sends: `requests` requests of `traces` traces, each with ids of its own."""

    requests: int
    traces: int
    content_type: str
    value_chars: int
    connections: int

    def round(self, turn: int) -> list[bytes]:
        """The requests; the first byte of their trace ids tells the turn."""
        request, ids = make_batch(self.traces, self.value_chars)
        as_json = self.content_type == JSON
        body = dump_json_message(request) if as_json else request.SerializeToString()
        out: list[bytes] = []
        for _ in range(self.requests):
            named = body
            for trace_id in ids:
                new = bytes((turn % 256,)) + secrets.token_bytes(15)
                named = named.replace(*((trace_id.hex().encode(), new.hex().encode()) if as_json else (trace_id, new)))
            out.append(http_request(named, self.content_type))
        return out

    @property
    def spans(self) -> int:
        return self.requests * self.traces * SPANS


@dataclass
class Rate:
    """What the rounds of one run took: spans, seconds, CPU seconds of the server and of the client."""

    best: float = 0.0
    spans: int = 0
    seconds: float = 0.0
    server: float = 0.0
    client: float = 0.0

    def add(self, spans: int, seconds: float, server: float, client: float) -> None:
        self.best = max(self.best, spans / seconds)
        self.spans += spans
        self.seconds += seconds
        self.server += server
        self.client += client

    @property
    def wall(self) -> float:
        """Spans per second over all rounds."""
        return self.spans / self.seconds

    @property
    def cpu(self) -> float:
        """Spans per second of the server's CPU time."""
        return self.spans / self.server


def http_request(body: bytes, content_type: str) -> bytes:
    head = (
        f"POST /v1/traces HTTP/1.1\r\nhost: bench\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def decode_only(_scope, receive, send) -> None:
    """Parses and throws away."""
    parts = []
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        if not event.get("more_body"):
            break
    ExportTraceServiceRequest.FromString(b"".join(parts))
    headers = [(b"content-type", b"application/x-protobuf"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def echo(_scope, receive, send) -> None:
    """Answers with the body it got."""
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            break
    headers = [(b"content-type", b"application/x-protobuf"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_bare(port: int, application: str) -> None:
    app = {"echo": echo, "decode only": decode_only}[application]
    uvicorn.run(app, host="127.0.0.1", port=port, log_config=None, access_log=False, lifespan="off", ws="none")


def serve_service(port: int, home: str) -> None:
    """SIGUSR1, sent after each of the service's turns, makes it forget the traces of the turn before."""
    settings = Settings.model_validate(
        {
            "listen": {"api": None, "otlp_grpc": None, "otlp_http": f"127.0.0.1:{port}"},
            "assembly": {"quiet_period": "10m", "timeout": "20m", "max_total_bytes": "4GiB"},
            "drain": "1s",
        }
    )
    app = create_app(settings, Home(Path(home)))
    turns = itertools.count()

    def let_go(*_: object) -> None:
        before = (next(turns) - 1) % 256
        app.engine.forget(0, lambda trace_id: trace_id[0] == before)

    signal.signal(signal.SIGUSR1, let_go)
    serve(app.run())


class Connection:
    """One keep-alive connection of the client: the request on its way out, then the answer to it."""

    def __init__(self, port: int, selector: selectors.BaseSelector) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._selector = selector
        selector.register(self._socket, selectors.EVENT_READ, self)
        self._out = memoryview(b"")
        self._missing = -1  # bytes of the answer; -1: its head has not come

    def send(self, request: bytes) -> None:
        self._out, self._missing = memoryview(request), -1
        self.go_on_sending()

    def go_on_sending(self) -> None:
        waited = self._selector.get_key(self._socket).events
        with contextlib.suppress(BlockingIOError):
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if events != waited:
            self._selector.modify(self._socket, events, self)

    def is_answered(self, buffer: bytearray) -> bool:
        """Read what has come; whether the answer is complete."""
        count = self._socket.recv_into(buffer)
        assert count, "the server closed the connection"
        if self._missing < 0:
            end = buffer.index(b"\r\n\r\n", 0, count) + 4
            head = bytes(buffer[:end]).lower()
            assert head.startswith(b"http/1.1 200"), head
            count -= end
            self._missing = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        self._missing -= count
        return self._missing == 0

    def close(self) -> None:
        self._selector.unregister(self._socket)
        self._socket.close()


def send_all(port: int, requests: list[bytes], connections: int) -> float:
    """Seconds until every request is answered with 200; every connection has one request under way.

    Plain sockets and one `epoll`: a request costs the client a fraction of what it costs the leanest server.
    """
    waiting = iter(requests)
    buffer = bytearray(1 << 18)
    left = len(requests)
    with selectors.DefaultSelector() as selector:
        opened = [Connection(port, selector) for _ in range(connections)]
        started = time.perf_counter()
        for connection, request in zip(opened, waiting, strict=False):
            connection.send(request)
        while left:
            for key, events in selector.select():
                connection = key.data
                if events & selectors.EVENT_WRITE:
                    connection.go_on_sending()
                if events & selectors.EVENT_READ and connection.is_answered(buffer):
                    left -= 1
                    if (request := next(waiting, None)) is not None:
                        connection.send(request)
        seconds = time.perf_counter() - started
        for connection in opened:
            connection.close()
    return seconds


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("the server does not listen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40, help="per round; of single traces a hundred times as many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4, help="for batches")
    parser.add_argument("--single-connections", type=int, default=64, help="for single traces")
    parser.add_argument("--hold", action="store_true", help="let no trace go")
    parser.add_argument("--value-chars", type=int, default=300, help="length of each of a span's ten attributes")
    options = parser.parse_args()
    batches = Load(options.batches, 50, PROTOBUF, options.value_chars, options.connections)
    singles = Load(options.batches * 100, 1, PROTOBUF, options.value_chars, options.single_connections)
    as_json = Load(options.batches, 50, JSON, options.value_chars, options.connections)
    runs = {
        "decode only, batches": ("decode only", batches),
        "durable, batches": ("durable", batches),
        "echo, single traces": ("echo", singles),
        "durable, single traces": ("durable", singles),
        "durable, JSON batches": ("durable", as_json),
    }
    ratios = [
        ("durable, batches", "decode only, batches", 0.5),
        ("durable, single traces", "echo, single traces", 0.3),
        ("durable, JSON batches", "durable, batches", 0.25),
    ]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as home:
        ports = {name: free_port() for name in ("decode only", "echo", "durable")}
        servers = {
            name: context.Process(target=serve_bare, args=(ports[name], name), daemon=True)
            for name in ("decode only", "echo")
        } | {"durable": context.Process(target=serve_service, args=(ports["durable"], home), daemon=True)}
        for name, server in servers.items():
            server.start()
            wait_for(ports[name])
        rates = {run: Rate() for run in runs}
        turn = 0  # of the service
        for _ in range(options.rounds):
            for run, (name, load) in runs.items():
                requests = load.round(turn)
                process = psutil.Process(servers[name].pid)
                before, mine = sum(process.cpu_times()[:2]), time.process_time()
                seconds = send_all(ports[name], requests, load.connections)
                cpu, mine = sum(process.cpu_times()[:2]) - before, time.process_time() - mine
                rates[run].add(load.spans, seconds, cpu, mine)
                if name == "durable":
                    turn += 1
                    if not options.hold:
                        os.kill(servers[name].pid or 0, signal.SIGUSR1)
                        time.sleep(0.5)
        for server in servers.values():
            server.terminate()
            server.join()
    for run, rate in rates.items():
        print(
            f"{run:24} {rate.best:10,.0f} spans/s (all rounds {rate.wall:,.0f})   {rate.cpu:10,.0f} per CPU second   "
            f"{runs[run][1].connections} connections, client {rate.client / rate.seconds:.0%} of a core"
        )
    for run, against, wanted in ratios:
        ours, theirs = rates[run], rates[against]
        print(
            f"{run} / {against}: best round {ours.best / theirs.best:.2f}, all rounds {ours.wall / theirs.wall:.2f}, "
            f"CPU {ours.cpu / theirs.cpu:.2f} (wanted {wanted})"
        )


if __name__ == "__main__":
    main()
