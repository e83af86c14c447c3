"""Programs started together, waited for until healthy, and stopped together with everything they started themselves.

Each program leads a session of its own, so that Ctrl-C reaches only us and its children can be found and ended with it
(Dagster's code server and run workers outlive their parent otherwise).
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import httpx
import psutil

from observer_core.errors import InputError, ObserverError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.3
_MOMENT_S = 3.0

State = Literal["starting", "healthy", "stopping", "stopped"]
OnState = Callable[[str, State, float], None]
"""Called with a program's name, its state and the seconds since it was started or asked to stop."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run: its command, the ports it takes (by the name `--ports` knows), and how to see that it works."""

    name: str
    command: Sequence[str]
    ports: Mapping[str, int]
    healthy: Callable[[], bool]
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    deadline_s: float = 240.0
    grace_s: float = 30.0


@dataclass(slots=True)
class _Running:
    program: Program
    process: subprocess.Popen[bytes]
    log: Path
    since: float
    healthy: bool = False


def port_owner(port: int) -> str | None:
    """Who listens on a TCP port of this machine: `pid 12 (mlflow server …)`; `None` when nobody is known to."""
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "another user's program"
                with contextlib.suppress(psutil.NoSuchProcess):
                    command = " ".join(psutil.Process(connection.pid).cmdline())
                    return f"pid {connection.pid} ({command[:60]}{'…' if len(command) > 60 else ''})"
    return None


def other_port(port: int) -> int:
    """A port to propose in place of a taken one."""
    return port + 10000 if port < 50000 else port - 10000


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(url: str) -> bool:
    """Whether a GET of `url` succeeds now."""
    try:
        return httpx.get(url, timeout=3).is_success
    except httpx.TransportError:
        return False


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Children started in the block get the default action of the stop signals.

    A child inherits ignored signals (a shell's background job ignores SIGINT) and would then never stop.
    """
    ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def session_members(session: int) -> list[psutil.Process]:
    """The living processes of a session; those that ended but were not collected by their parent do not count."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def _ignore(*_: object) -> None: ...


class Supervisor:
    """Runs programs; leaving the `with` block stops all of them, whatever happened.

    Logs go to `<logs>/<name>.log`. Ports are checked before anything is started.
    """

    def __init__(self, programs: Sequence[Program], logs: Path, on_state: OnState | None = None) -> None:
        self.programs = programs
        self.logs = logs
        self._on_state = on_state or _ignore
        self._running: list[_Running] = []

    def __enter__(self) -> "Supervisor":
        try:
            self.check_ports()
            for program in self.programs:
                self._running.append(self._launch(program))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check_ports(self) -> None:
        """Refuse ports that are taken, all in one error.

        Raises:
            InputError: names each port, who has it, and the option that chooses another.
        """
        taken = [(name, port) for p in self.programs for name, port in p.ports.items() if not port_is_free(port)]
        if taken:
            said = "; ".join(f"port {port} is in use by {port_owner(port) or 'another program'}" for _, port in taken)
            mend = ",".join(f"{name}={other_port(port)}" for name, port in taken)
            raise InputError(f"{said}; stop it, or choose another with --ports {mend}")

    def pid(self, name: str) -> int:
        """The process id of a program, which is also its session's."""
        return next(running.process.pid for running in self._running if running.program.name == name)

    def _launch(self, program: Program) -> _Running:
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{program.name}.log"
        try:
            with log.open("ab") as stream, default_signals():
                process = subprocess.Popen(
                    list(program.command),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    cwd=program.folder,
                    env={**os.environ, **program.environment},
                    start_new_session=True,
                )
        except FileNotFoundError as error:
            raise ObserverError(f"cannot start {program.name}: {program.command[0]} is not installed") from error
        self._on_state(program.name, "starting", 0.0)
        return _Running(program, process, log, time.monotonic())

    def wait_healthy(self, names: Sequence[str] | None = None) -> None:
        """Wait until the named programs (default: all) are healthy.

        Raises:
            ObserverError: one ended or is not healthy by its deadline; shows the last line of its log and where it is.
        """
        waiting = [r for r in self._running if not r.healthy and (names is None or r.program.name in names)]
        while waiting:
            for running in list(waiting):
                self._check_alive(running)
                passed = time.monotonic() - running.since
                if running.program.healthy():
                    running.healthy = True
                    waiting.remove(running)
                    self._on_state(running.program.name, "healthy", passed)
                elif passed > running.program.deadline_s:
                    raise ObserverError(
                        f"{running.program.name} is not healthy after {passed:.0f} s ({_last_line(running.log)}); "
                        f"see {running.log}"
                    )
                else:
                    self._on_state(running.program.name, "starting", passed)
            time.sleep(_POLL_S if waiting else 0)

    def check_alive(self) -> None:
        """Raise when a program has ended by itself.

        Raises:
            ObserverError: names it and shows the last line of its log.
        """
        for running in self._running:
            self._check_alive(running)

    def _check_alive(self, running: _Running) -> None:
        code = running.process.poll()
        if code is not None:
            raise ObserverError(
                f"{running.program.name} ended with exit code {code} ({_last_line(running.log)}); see {running.log}"
            )

    def stop(self) -> None:
        """Ask all programs to end, then end what is left of their sessions; none of their processes survives this.

        A program gets its grace to end its own children; those it leaves get a moment of their own.
        """
        asked = time.monotonic()
        for running in self._running:
            self._on_state(running.program.name, "stopping", 0.0)
            _signal([p for p in _alive(running) if p.pid == running.process.pid], signal.SIGTERM)
        for running in self._running:
            _wait(lambda running=running: running.process.poll() is not None, asked + running.program.grace_s)
            if left := _alive(running):
                _signal(left, signal.SIGTERM)
                _wait(lambda running=running: not _alive(running), time.monotonic() + _MOMENT_S)
            while left := _alive(running):
                _signal(left, signal.SIGKILL)
                time.sleep(0.05)
            self._on_state(running.program.name, "stopped", time.monotonic() - asked)
        self._running.clear()


def _wait(until: Callable[[], bool], deadline: float) -> None:
    while not until() and time.monotonic() < deadline:
        time.sleep(0.1)


def _alive(running: _Running) -> list[psutil.Process]:
    running.process.poll()  # collects it when it has ended
    return session_members(running.process.pid)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _last_line(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    return f"its last line: {lines[-1].strip()[:200]}" if lines else "its log is empty"


class Interrupted(BaseException):
    """A stop signal arrived."""


@contextlib.contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Within the block Ctrl-C, SIGTERM and SIGHUP raise `Interrupted` once; later ones are left to finish stopping."""
    seen = False

    def handler(number: int, _frame: Any) -> None:
        nonlocal seen
        if not seen:
            seen = True
            raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
