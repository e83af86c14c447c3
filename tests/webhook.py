"""A Slack-compatible webhook for tests: a real local server that remembers what it took."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hook(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.taken: list[dict] = []
        self.script: list[int] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/services/T/B/x"


class _Handler(BaseHTTPRequestHandler):
    server: Hook  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = self.server.script.pop(0) if self.server.script else 200
        if status == 200:
            self.server.taken.append(body)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running_hook() -> Iterator[Hook]:
    """A hook that listens."""
    server = Hook()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
