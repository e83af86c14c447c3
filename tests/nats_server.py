"""A real nats-server with JetStream for tests; can be killed and started again over the same folder."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

NATS_SERVER = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/bin")
needs_nats = pytest.mark.skipif(NATS_SERVER is None, reason="nats-server is not installed")


class NatsServer:
    """`nats-server -js` on loopback."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = folder / "nats.conf"
        lines = [f'listen: "127.0.0.1:{self.port}"', f'jetstream: {{store_dir: "{folder}/js"}}']
        self._config.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in options.items())]))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "NatsServer":
        assert NATS_SERVER is not None
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen([NATS_SERVER, "-c", str(self._config)], stdout=log, stderr=log)
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            time.sleep(0.05)
        raise AssertionError((self.folder / "server.log").read_text())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None


@contextlib.contextmanager
def running_nats(folder: Path, **options: object) -> Iterator[NatsServer]:
    server = NatsServer(folder, **options).start()
    try:
        yield server
    finally:
        server.stop()
