"""Spans per second received durably, against a receiver on the same server stack that only parses and throws away.

    python benchmarks/receive.py

Both run as processes of their own and get 50-trace protobuf batches over equally many connections, in turns, so that
what else the machine does hits both. The service writes every batch to its log and syncs it before it answers; traces
stay open (their assembly is part of the figure, scoring is not). Printed are spans per second of wall time and
spans per second of the server's CPU time, best round of each, and the ratios.
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
from pathlib import Path

import psutil
import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_core.home import Home
from observer_serving.app import create_app
from observer_serving.config import Settings

TRACES, SPANS, ATTRIBUTES = 50, 10, 10


def make_batch(value_chars: int) -> tuple[bytes, list[bytes]]:
    """A request of 50 ten-span traces, and its trace ids, to be replaced by fresh ones of equal length."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = "agent"
    scope_spans = resource_spans.scope_spans.add()
    ids = [secrets.token_bytes(16) for _ in range(TRACES)]
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
    return request.SerializeToString(), ids


def fresh(body: bytes, ids: list[bytes]) -> bytes:
    """The batch with new trace ids."""
    for trace_id in ids:
        body = body.replace(trace_id, secrets.token_bytes(16))
    return body


def http_request(body: bytes) -> bytes:
    head = (
        f"POST /v1/traces HTTP/1.1\r\nhost: bench\r\ncontent-type: application/x-protobuf\r\n"
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


def serve_decode_only(port: int) -> None:
    uvicorn.run(decode_only, host="127.0.0.1", port=port, log_config=None, access_log=False, lifespan="off", ws="none")


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
    parser.add_argument("--batches", type=int, default=40, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--value-chars", type=int, default=300, help="length of each of a span's ten attributes")
    options = parser.parse_args()
    body, ids = make_batch(options.value_chars)
    spans = options.batches * TRACES * SPANS
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as home:
        ports = {"decode only": free_port(), "durable": free_port()}
        servers = {
            "decode only": context.Process(target=serve_decode_only, args=(ports["decode only"],), daemon=True),
            "durable": context.Process(target=serve_service, args=(ports["durable"], home), daemon=True),
        }
        best: dict[str, list[float]] = {name: [0.0, 0.0] for name in servers}
        for name, server in servers.items():
            server.start()
            wait_for(ports[name])
        for _ in range(options.rounds):
            for name, server in servers.items():
                requests = [http_request(fresh(body, ids)) for _ in range(options.batches)]
                process = psutil.Process(server.pid)
                before = sum(process.cpu_times()[:2])
                seconds = asyncio.run(send_all(ports[name], requests, options.connections))
                cpu = sum(process.cpu_times()[:2]) - before
                best[name] = [max(best[name][0], spans / seconds), max(best[name][1], spans / cpu)]
        for server in servers.values():
            server.terminate()
            server.join()
    print(f"{options.batches} batches of {TRACES} traces, {SPANS} spans each, {len(body) / 1e6:.2f} MB a batch")
    for name, (wall, cpu) in best.items():
        print(f"{name:12} {wall:10,.0f} spans/s   {cpu:10,.0f} spans per CPU second")
    wall, cpu = (best["durable"][i] / best["decode only"][i] for i in (0, 1))
    print(f"ratio        {wall:10.2f} wall     {cpu:10.2f} CPU")


if __name__ == "__main__":
    main()
