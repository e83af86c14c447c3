"""`observer slice`: the state text of a trace."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from observer_core.errors import InputError
from observer_core.questions import default_questions
from observer_core.rundir import open_run
from observer_core.slices import DEFAULT_FORMAT, StateBuilder, v2_spec
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
        format: Annotated[str, typer.Option(help="State format: v1 | v2")] = DEFAULT_FORMAT,
        run: Annotated[Path | None, typer.Option(help="Build it as for this run, whatever its format")] = None,
        max_tokens: Annotated[int, typer.Option(help="Without a run: tokens of a laya-mini row (v2)")] = 256,
    ) -> None:
        """Print the state text of a trace, without a trailing newline."""
        try:
            text = read_input(file).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not UTF-8 (byte {error.start}); give a trace as JSON") from error
        trace = parse_trace(text)
        state = _builder(format, run, max_tokens).build(trace)
        sys.stdout.buffer.write(state.text.encode("utf-8"))


def _builder(format: str, run: Path | None, max_tokens: int) -> StateBuilder:
    if run is not None:
        opened = open_run(run)
        return StateBuilder(opened.manifest.slice_spec, opened.tokenizer)
    if format != "v2":
        return StateBuilder({"format": format})
    from observer_core.decision.laya.layout import Layout
    from observer_core.decision.laya.presets import HEAD_MAX_LEN, find_preset

    tokenizer = find_preset("laya-mini").folder
    layout = Layout(tokenizer, max_len=max_tokens, head_max_len=HEAD_MAX_LEN)
    return StateBuilder(v2_spec(tokenizer, layout.state_room(default_questions())), tokenizer)
