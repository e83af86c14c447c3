"""Programs are waited for, stopped with all their children, and complained about clearly."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from observer_core.errors import InputError, ObserverError
from observer_pipeline.stack import Ports
from observer_pipeline.supervise import Program, Supervisor, answers, session_members

SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", CHILD])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
PLAIN_CHILD = "import time; time.sleep(600)"
STUBBORN_CHILD = (
    "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT)]; time.sleep(600)"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def server(folder: Path, child: str = PLAIN_CHILD, **changes) -> Program:
    port = free_port()
    script = folder / "server.py"
    script.write_text(f"CHILD = {child!r}\n{SERVER}", encoding="utf-8")
    settings = {
        "name": "web",
        "command": [sys.executable, str(script), str(port)],
        "ports": {"web": port},
        "healthy": lambda: answers(f"http://127.0.0.1:{port}/"),
        "url": f"http://127.0.0.1:{port}",
        "grace_s": 2.0,
    }
    return Program(**(settings | changes))


@pytest.mark.parametrize("child", [PLAIN_CHILD, STUBBORN_CHILD], ids=["children that end", "children that will not"])
def test_stopping_leaves_no_process(tmp_path, child):
    states = []
    program = server(tmp_path, child)
    with Supervisor([program], tmp_path / "logs", lambda name, state, seconds: states.append(state)) as supervisor:
        supervisor.wait_healthy()
        session = supervisor.pid("web")
        assert httpx.get(program.url).is_success
        assert len(session_members(session)) == 2
    assert session_members(session) == []
    assert [s for i, s in enumerate(states) if i == 0 or s != states[i - 1]] == [
        "starting", "healthy", "stopping", "stopped",
    ]  # fmt: skip


def test_everything_is_stopped_when_the_block_raises(tmp_path):
    session = 0
    with pytest.raises(ZeroDivisionError), Supervisor([server(tmp_path)], tmp_path) as supervisor:
        supervisor.wait_healthy()
        session = supervisor.pid("web")
        raise ZeroDivisionError
    assert session_members(session) == []


def test_children_do_not_inherit_ignored_signals(tmp_path):
    """A script's background job ignores SIGINT; what it starts must not, or it could not be stopped that way."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Supervisor([server(tmp_path)], tmp_path) as supervisor:
            supervisor.wait_healthy()
            status = Path(f"/proc/{supervisor.pid('web')}/status").read_text(encoding="utf-8")
    finally:
        signal.signal(signal.SIGINT, before)
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    assert not ignored & 1 << (signal.SIGINT - 1)


def test_a_taken_port_is_named_with_its_owner_and_the_mend(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = server(tmp_path, ports={"phoenix": port})
        with (
            pytest.raises(InputError, match=rf"port {port} is in use by pid {os.getpid()} .*--ports phoenix=\d+"),
            Supervisor([program], tmp_path / "logs"),
        ):
            pass
    assert not (tmp_path / "logs").exists()  # nothing was started


def test_a_program_that_ends_is_named_with_its_last_line(tmp_path):
    program = server(tmp_path, command=[sys.executable, "-c", "raise SystemExit('no such database')"])
    with (
        pytest.raises(ObserverError, match=r"web ended with exit code 1 .*no such database.*web\.log"),
        Supervisor([program], tmp_path) as supervisor,
    ):
        supervisor.wait_healthy()


def test_a_program_that_is_never_healthy_meets_its_deadline(tmp_path):
    program = server(tmp_path, healthy=lambda: False, deadline_s=0.5)
    with pytest.raises(ObserverError, match="not healthy after"), Supervisor([program], tmp_path) as supervisor:
        supervisor.wait_healthy()


def test_a_command_that_is_not_installed_is_named(tmp_path):
    program = server(tmp_path, command=["no-such-program-at-all"])
    with pytest.raises(ObserverError, match="no-such-program-at-all is not installed"), Supervisor([program], tmp_path):
        pass


def test_ports_are_read():
    ports = Ports.parse("phoenix=16006, api=18080")
    assert (ports.phoenix, ports.api, ports.mlflow) == (16006, 18080, 5000)
    for bad in ("nope=1", "api=", "api=99999", "api=x"):
        with pytest.raises(InputError, match="--ports"):
            Ports.parse(bad)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_all_on_a_signal(tmp_path, number):
    """`observer up` with the service alone: healthy, then stopped by a signal, with nothing left behind."""
    ports = {name: free_port() for name in ("api", "otlp", "otlp_grpc")}
    command = [
        sys.executable, "-m", "observer_pipeline.cli", "up", "--only", "service",
        "--ports", ",".join(f"{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    environment = {**os.environ, "OBSERVER_HOME": str(tmp_path / "home")}
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        url = f"http://127.0.0.1:{ports['api']}"
        deadline = time.monotonic() + 120
        while "state " not in (tmp_path / "out").read_text(encoding="utf-8") and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "out").read_text(encoding="utf-8")
            time.sleep(0.2)
        assert answers(f"{url}/healthz")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
    assert children
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert "service: stopped" in (tmp_path / "out").read_text(encoding="utf-8")
