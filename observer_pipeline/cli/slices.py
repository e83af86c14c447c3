"""`observer slice`: the state text of a trace."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from observer_core.errors import InputError
from observer_core.slices import build_state
from observer_core.traces.jsonl import parse_trace


def read_input(source: str) -> bytes:
    """The bytes of a file, or of standard input for `-`.

    Raises:
        InputError: the file cannot be read.
    """
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {source}: {error.strerror}; give a file with one trace, or - for standard input"
        ) from error


def register(app: typer.Typer) -> None:
    @app.command("slice")
    def slice_command(
        file: Annotated[str, typer.Argument(help="A trace as JSON, or - for standard input")],
        format: Annotated[str, typer.Option(help="State format")] = "v1",
    ) -> None:
        """Print the state text of a trace, without a trailing newline."""
        try:
            text = read_input(file).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not UTF-8 (byte {error.start}); give a trace as JSON") from error
        state = build_state(parse_trace(text), {"format": format})
        sys.stdout.buffer.write(state.text.encode("utf-8"))
