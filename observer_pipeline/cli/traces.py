"""`observer traces convert` and `observer deadletter`: traces between formats, and those a back end refused."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from observer_core.errors import InputError
from observer_core.home import Home

if TYPE_CHECKING:
    from observer_serving.export.queue import DeadLetter


def register(app: typer.Typer) -> None:
    traces = typer.Typer(help="Trace files.", no_args_is_help=True)
    deadletter = typer.Typer(help="Traces that a back end refused.", no_args_is_help=True)
    app.add_typer(traces, name="traces")
    app.add_typer(deadletter, name="deadletter")

    @traces.command("convert")
    def convert_command(
        source: Annotated[
            str, typer.Argument(help="JSONL, ReAct log, OTLP file, folder, or phoenix://host:port/project")
        ],
        dest: Annotated[str, typer.Argument(help="The file to write, or phoenix://host:port/project to send to")],
        to: Annotated[
            Literal["jsonl", "otlp", "langchain", "openai", "react"] | None,
            typer.Option(help="Format; by default .json and .pb are OTLP, .txt and .log ReAct, everything else JSONL"),
        ] = None,
        project: Annotated[str | None, typer.Option(help="Phoenix project written on the spans")] = None,
        skip_invalid: Annotated[
            bool, typer.Option("--skip-invalid", help="Leave out lines that cannot be read")
        ] = False,
    ) -> None:
        """Convert traces. Spans never carry labels; OTLP files become OTLP or go to Phoenix span by span."""
        from observer_pipeline.sources import convert

        done = convert(source, dest, to=to, project=project, skip_invalid=skip_invalid)
        note = f", {done.labels_left_out} labels left out" if done.labels_left_out else ""
        print(f"{done.traces} traces written to {dest} ({done.format}{note})")

    @deadletter.command("list")
    def list_command(
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line")] = False,
    ) -> None:
        """The refused traces with the back end's answer, oldest first."""
        for letter in _letters():
            if as_json:
                print(json.dumps(_record(letter)))
            else:
                about = f"{letter.at}  {letter.exporter}  {letter.trace_id}  {letter.spans} spans"
                print(f"{about}  {'no answer' if letter.status is None else letter.status}  {letter.response}")

    @deadletter.command("replay")
    def replay_command(
        trace_ids: Annotated[list[str] | None, typer.Argument(help="Trace ids", show_default=False)] = None,
        every: Annotated[bool, typer.Option("--all", help="All of them")] = False,
        exporter: Annotated[str | None, typer.Option(help="Only those of this exporter")] = None,
    ) -> None:
        """Queue refused traces again; a running service sends them within seconds, else the next one does."""
        from observer_serving.export.queue import replay

        if bool(trace_ids) == every:
            raise InputError("say which dead letters: trace ids, or --all; 'observer deadletter list' shows them")
        letters = [letter for letter in _letters() if exporter in (None, letter.exporter)]
        if trace_ids:
            missing = set(trace_ids) - {letter.trace_id for letter in letters}
            if missing:
                raise InputError(f"no dead letter of trace {min(missing)}; 'observer deadletter list' shows all")
            letters = [letter for letter in letters if letter.trace_id in trace_ids]
        for letter in letters:
            replay(letter)
        print(f"{len(letters)} dead letters queued again")


def _letters() -> Sequence["DeadLetter"]:
    from observer_serving.export.queue import dead_letters

    serving = Home.from_env().serving
    if not serving.is_dir():
        raise InputError(f"no service has run in {serving.parent}; set OBSERVER_HOME to the folder of one that has")
    return list(dead_letters(serving))


def _record(letter: "DeadLetter") -> dict[str, object]:
    return {
        "at": letter.at,
        "exporter": letter.exporter,
        "trace_id": letter.trace_id,
        "spans": letter.spans,
        "status": letter.status,
        "response": letter.response,
    }
