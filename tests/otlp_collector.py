"""An OTLP/HTTP back end for tests: a real server on loopback that answers as it is told and keeps what it accepts."""

import gzip
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

Reply = tuple[int, dict[str, str], bytes]
OK: Reply = (200, {"content-type": "application/x-protobuf"}, ExportTraceServiceResponse().SerializeToString())


@dataclass
class Received:
    """One request to the traces route."""

    headers: dict[str, str]
    body: bytes
    status: int = 0
    path: str = "/v1/traces"

    @property
    def request(self) -> ExportTraceServiceRequest:
        return ExportTraceServiceRequest.FromString(self.body)

    @property
    def names(self) -> list[str]:
        return [
            span.name for group in self.request.resource_spans for scope in group.scope_spans for span in scope.spans
        ]


@dataclass
class Collector:
    """Context manager; `answer` decides the reply to each traces request, `annotate` that to annotations."""

    answer: Callable[[Received], Reply] = lambda _: OK
    annotate: Callable[[list[dict]], Reply] = lambda _: (200, {}, b'{"data":[]}')
    show: Callable[[list[str]], list[str]] = lambda spans: spans
    looked_up: list[str] = field(default_factory=list)
    phoenix: bool = False
    port: int = 0
    requests: list[Received] = field(default_factory=list)
    annotations: list[dict] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> "Collector":
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with collector.changed:
                    if self.path.endswith("/v1/traces"):
                        if self.headers.get("content-encoding") == "gzip":
                            body = gzip.decompress(body)
                        received = Received({k.lower(): v for k, v in self.headers.items()}, body, path=self.path)
                        status, headers, content = collector.answer(received)
                        received.status = status
                        collector.requests.append(received)
                    else:
                        assert self.path == "/v1/trace_annotations"
                        rows = json.loads(body)["data"]
                        status, headers, content = collector.annotate(rows)
                        if status == 200:
                            collector.annotations += rows
                    collector.changed.notify_all()
                self.send_response(status)
                if collector.phoenix:
                    self.send_header("x-phoenix-server-version", "20.26.1")
                for key, value in (headers | {"content-length": str(len(content))}).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                """Phoenix's list of a trace's spans: those accepted so far, unless told otherwise."""
                url = urlsplit(self.path)
                trace_id = parse_qs(url.query)["trace_id"][0]
                with collector.changed:
                    collector.looked_up.append(url.path)
                    spans = [
                        span.span_id.hex()
                        for received in collector.requests
                        if received.status == 200
                        for group in received.request.resource_spans
                        for scope in group.scope_spans
                        for span in scope.spans
                        if span.trace_id.hex() == trace_id
                    ]
                    content = json.dumps({"data": collector.show(spans), "next_cursor": None}).encode()
                    collector.changed.notify_all()
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    @property
    def accepted(self) -> list[str]:
        """Names of the spans of accepted requests, in order."""
        return [name for received in self.requests if received.status == 200 for name in received.names]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until `condition` holds after some request; fails after 20 s."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout=20), [r.status for r in self.requests]
