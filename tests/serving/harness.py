"""The service as a process of its own, and what clients of it need."""

import gzip
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

RUN = "from observer_pipeline.cli import main; main()"


class Service:
    """`observer serve` over one state folder; can be killed and started again."""

    def __init__(self, home: Path, settings: dict[str, Any]) -> None:
        self.home = home
        self.config = home.with_suffix(".yaml")
        listen = {"api": "127.0.0.1:0", "otlp_http": "127.0.0.1:0", "otlp_grpc": "127.0.0.1:0"}
        defaults = {"assembly": {"quiet_period": "100ms", "timeout": "2s"}, "spool": {"max_age": "300ms"}}
        self.config.write_text(yaml.safe_dump({"listen": listen, **defaults, **settings}))
        self.client = httpx.Client(timeout=30)
        self.process: subprocess.Popen[str] | None = None
        self.prelude = ""
        """Python that the process runs first."""
        self.api = self.otlp_http = self.otlp_grpc = ""

    def start(self, *, ready: bool = True) -> "Service":
        """Return once it listens, and by default once its model is in force too."""
        log = self.home.with_suffix(".log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.prelude + RUN, "serve", "--config", self.config],
            env=os.environ | {"OBSERVER_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("observer listens:"), self.log()
        addresses = dict(part.split("=", 1) for part in line.split()[2:])
        self.api, self.otlp_http = addresses["api"], addresses["otlp_http"]
        self.otlp_grpc = addresses["otlp_grpc"].removeprefix("http://")
        if ready:
            wait_until(lambda: "scorer" not in self.client.get(self.api + "/readyz").json()["problems"])
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def log(self) -> str:
        return self.home.with_suffix(".log").read_text()

    def log_lines(self, logger: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["logger"] == logger]

    def get(self, path: str, **params: Any) -> Any:
        answer = self.client.get(self.api + path, params=params)
        answer.raise_for_status()
        return answer.json()

    def post_trace(self, trace: dict[str, Any]) -> str:
        answer = self.client.post(self.api + "/v1/traces", json=trace)
        assert answer.status_code == 202, answer.text
        return answer.json()["trace_id"]

    def export(self, request: ExportTraceServiceRequest) -> httpx.Response:
        return self.client.post(
            self.otlp_http + "/v1/traces",
            content=request.SerializeToString(),
            headers={"content-type": "application/x-protobuf"},
        )

    def decisions(self) -> list[dict[str, Any]]:
        """The whole record, newest first."""
        out: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = self.get("/v1/decisions", limit=1000, **({"cursor": cursor} if cursor else {}))
            out += page["decisions"]
            cursor = page["next_cursor"]
            if cursor is None:
                return out

    def wait_for_decisions(self, count: int, *, seconds: float = 30) -> list[dict[str, Any]]:
        wait_until(lambda: self.get("/v1/stats")["decisions_on_record"] >= count, seconds=seconds)
        return self.decisions()

    def metrics(self) -> dict[str, float]:
        """Every sample by its name with labels."""
        lines = self.client.get(self.api + "/metrics").text.splitlines()
        return {
            name: float(value) for line in lines if not line.startswith("#") for name, value in [line.rsplit(" ", 1)]
        }


class BackEnd:
    """An OTLP/HTTP back end that remembers what it was sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.down = False
        back_end = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if back_end.down:
                    self.send_error(503)
                    return
                if self.path == "/v1/traces":
                    if self.headers.get("content-encoding") == "gzip":
                        body = gzip.decompress(body)
                    back_end.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def __enter__(self) -> "BackEnd":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def spans(self) -> list[Span]:
        return [s for r in self.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]


def attributes(span: Span) -> dict[str, Any]:
    """The scalar attributes of a span by key."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "string_value") for a in span.attributes}


def wait_until(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    """Poll a real process until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def summed(metrics: dict[str, float], name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(value for key, value in metrics.items() if key == name or key.startswith(name + "{"))


def make_request(
    *traces: tuple[bytes, list[bytes]], question: str = "Which river?", service: str = "agent"
) -> ExportTraceServiceRequest:
    """An export request: per trace an id and span ids, the first of them the root."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add(schema_url="https://opentelemetry.io/schemas/1.30.0")
    resource_spans.resource.attributes.add(key="service.name").value.string_value = service
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "test"
    now = time.time_ns()
    for trace_id, span_ids in traces:
        for number, span_id in enumerate(span_ids):
            span = scope_spans.spans.add(
                trace_id=trace_id,
                span_id=span_id,
                parent_span_id=b"" if number == 0 else span_ids[0],
                name="run" if number == 0 else "step",
                start_time_unix_nano=now + number,
                end_time_unix_nano=now + 1000 + number,
                flags=0x101,
            )
            if number == 0:
                for key, value in (
                    ("openinference.span.kind", "AGENT"),
                    ("input.value", question),
                    ("output.value", "The Danube."),
                ):
                    span.attributes.add(key=key).value.string_value = value
    return request


def new_trace(spans: int = 3) -> tuple[bytes, list[bytes]]:
    """A fresh trace id with fresh span ids."""
    return secrets.token_bytes(16), [secrets.token_bytes(8) for _ in range(spans)]
