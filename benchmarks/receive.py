"""Spans per second received durably, against servers on the same stack that do next to nothing.

    python benchmarks/receive.py

Three comparisons: 50-trace protobuf batches against a receiver that parses and throws away; single-trace requests
against a bare ASGI echo of the same body; 50-trace JSON batches against protobuf ones. All servers run as processes of
their own and get their requests over equally many connections, in turns, so that what else the machine does hits all.
The service writes every batch to its log and syncs it before it answers; traces stay open (their assembly is part of
the figure, scoring is not). Printed are spans per second of wall time and per second of the server's CPU time, best
round of each, and the ratios.
"""

import argparse
import asyncio
import multiprocessing
import os
import secrets
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

    def round(self) -> list[bytes]:
        request, ids = make_batch(self.traces, self.value_chars)
        as_json = self.content_type == JSON
        body = dump_json_message(request) if as_json else request.SerializeToString()
        out: list[bytes] = []
        for _ in range(self.requests):
            named = body
            for trace_id in ids:
                new = secrets.token_bytes(16)
                named = named.replace(*((trace_id.hex().encode(), new.hex().encode()) if as_json else (trace_id, new)))
            out.append(http_request(named, self.content_type))
        return out

    @property
    def spans(self) -> int:
        return self.requests * self.traces * SPANS


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
    settings = Settings.model_validate(
        {
            "listen": {"api": None, "otlp_grpc": None, "otlp_http": f"127.0.0.1:{port}"},
            "assembly": {"quiet_period": "10m", "timeout": "20m", "max_total_bytes": "4GiB"},
            "drain": "1s",
        }
    )
    asyncio.run(create_app(settings, Home(Path(home))).run())


async def send_all(port: int, requests: list[bytes], connections: int) -> float:
    """Seconds until every request is answered with 200, the requests shared out over the connections."""
    waiting = list(requests)

    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while waiting:
            writer.write(waiting.pop())
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
    started = time.perf_counter()
    await asyncio.gather(*(worker(*pair) for pair in opened))
    return time.perf_counter() - started


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
    parser.add_argument("--batches", type=int, default=40, help="per round; of single traces ten times as many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--value-chars", type=int, default=300, help="length of each of a span's ten attributes")
    options = parser.parse_args()
    batches = Load(options.batches, 50, PROTOBUF, options.value_chars)
    singles = Load(options.batches * 10, 1, PROTOBUF, options.value_chars)
    as_json = Load(max(1, options.batches // 4), 50, JSON, options.value_chars)
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
        best: dict[str, list[float]] = {name: [0.0, 0.0] for name in runs}
        for _ in range(options.rounds):
            for run, (name, load) in runs.items():
                requests = load.round()
                process = psutil.Process(servers[name].pid)
                before = sum(process.cpu_times()[:2])
                seconds = asyncio.run(send_all(ports[name], requests, options.connections))
                cpu = max(sum(process.cpu_times()[:2]) - before, 0.01)
                best[run] = [max(best[run][0], load.spans / seconds), max(best[run][1], load.spans / cpu)]
        for server in servers.values():
            server.terminate()
            server.join()
    for run, (wall, cpu) in best.items():
        print(f"{run:24} {wall:10,.0f} spans/s   {cpu:10,.0f} spans per CPU second")
    for run, against, wanted in ratios:
        wall, cpu = (best[run][i] / best[against][i] for i in (0, 1))
        print(f"{run} / {against}: {wall:.2f} wall, {cpu:.2f} CPU (wanted {wanted})")


if __name__ == "__main__":
    main()
