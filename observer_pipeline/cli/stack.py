"""`observer up` and `observer doctor`: the whole of Observer on this machine, and whether it can run here."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from observer_core.home import Home

if TYPE_CHECKING:
    from rich.console import Console

    from observer_pipeline.supervise import OnState, Program, State

_CHECK_S = 1.0


def register(app: typer.Typer) -> None:
    @app.command("up")
    def up(
        only: Annotated[str | None, typer.Option(help="Of phoenix, mlflow, dagster, service: which to start")] = None,
        ports: Annotated[str | None, typer.Option(help="Other ports, as phoenix=16006,api=18080")] = None,
        config: Annotated[Path | None, typer.Option(help="observer.yaml for the service")] = None,
    ) -> None:
        """Start Phoenix, MLflow, Dagster and the service on loopback; Ctrl-C stops all of them."""
        from observer_pipeline.stack import LOGS, Ports, programs
        from observer_pipeline.supervise import Interrupted, Supervisor, stop_signals_raise

        home = Home.from_env()
        home.ensure(home.root)
        chosen = programs(home, Ports.parse(ports), _names(only), config)
        try:
            with stop_signals_raise(), Supervisor(chosen, home.root / LOGS, state_printer()) as supervisor:
                supervisor.wait_healthy()
                print_urls(chosen, home)
                while True:
                    supervisor.check_alive()
                    time.sleep(_CHECK_S)
        except Interrupted:
            print("all stopped", file=sys.stderr)

    @app.command("doctor")
    def doctor(
        ports: Annotated[str | None, typer.Option(help="Other ports, as for up")] = None,
    ) -> None:
        """Check versions, ports, disk and optional services, and say what to do."""
        from rich.table import Table

        from observer_pipeline.doctor import examine
        from observer_pipeline.stack import Ports

        table = Table("", "what", "found", "mend", box=None, pad_edge=False)
        marks = {"ok": "[green]ok[/]", "optional": "[yellow]–[/]", "bad": "[red]bad[/]"}
        findings = examine(Home.from_env(), Ports.parse(ports))
        for finding in findings:
            table.add_row(marks[finding.state], finding.what, finding.found, finding.mend)
        console().print(table)
        if any(finding.state == "bad" for finding in findings):
            raise typer.Exit(1)


def console() -> "Console":
    """Standard output for tables: as wide as the terminal, or wide enough for whole rows elsewhere."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _names(only: str | None) -> list[str]:
    return [name.strip() for name in (only or "").split(",") if name.strip()]


def state_printer() -> "OnState":
    """Prints a program's changes of state on stderr, one line each; while one starts, a line every 15 s."""
    said: dict[str, tuple[State, float]] = {}

    def say(name: str, state: "State", seconds: float) -> None:
        before = said.get(name)
        if before and before[0] == state and seconds - before[1] < 15:
            return
        said[name] = (state, seconds)
        after = f" after {seconds:.0f} s" if state in ("healthy", "stopped") else f", {seconds:.0f} s" * (seconds >= 1)
        print(f"{name}: {state}{after}", file=sys.stderr, flush=True)

    return say


def print_urls(chosen: "list[Program]", home: Home) -> None:
    """The table of what runs where."""
    from rich.table import Table

    table = Table("program", "open", "takes", box=None, pad_edge=False)
    for program in chosen:
        table.add_row(program.name, program.url, ", ".join(_takes(program)))
    out = console()
    out.print(table)
    out.print(f"state {home.root}, logs {home.root / 'logs'}; Ctrl-C stops all")


def _takes(program: "Program") -> Iterator[str]:
    for name, port in program.ports.items():
        if name == "otlp":
            yield f"OTLP/HTTP {port}"
        elif name.endswith("_grpc"):
            yield f"OTLP/gRPC {port}"
