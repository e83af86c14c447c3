"""`observer systemone`: a decision model behind `/v1/systemone`."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from observer_core.durations import parse_duration
from observer_core.errors import InputError
from observer_serving.systemone.limits import Limits

KEY_VARIABLE = "OBSERVER_SYSTEMONE_KEY"
DEFAULTS = Limits()


def register(app: typer.Typer) -> None:
    @app.command("systemone")
    def systemone(
        run: Annotated[Path, typer.Option(help="Run directory of family kev or laya")],
        host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a key")] = "127.0.0.1",
        port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8010,
        key_env: Annotated[
            str | None, typer.Option(help=f"Environment variable with the bearer key; {KEY_VARIABLE} when set")
        ] = None,
        key_file: Annotated[Path | None, typer.Option(help="File with the bearer key")] = None,
        backend: Annotated[Literal["auto", "onnx", "torch"], typer.Option(help="What computes")] = "auto",
        truncate_states: Annotated[
            bool, typer.Option(help="Cut a state that does not fit, and say so, instead of answering 413")
        ] = False,
        max_batch_tokens: Annotated[
            int, typer.Option(min=1, help="Tokens computed together; more for a GPU")
        ] = DEFAULTS.batch_tokens,
        max_request_tokens: Annotated[
            int, typer.Option(min=1, help="Tokens computed for one request; 413 above")
        ] = DEFAULTS.request_tokens,
        max_questions: Annotated[int, typer.Option(min=1, help="Of one request; 422 above")] = DEFAULTS.questions,
        max_body: Annotated[str, typer.Option(help="Of a request, uncompressed; 413 above")] = "2MiB",
        max_waiting: Annotated[
            int, typer.Option(min=1, help="Requests not answered yet; 503 above")
        ] = DEFAULTS.waiting,
        deadline: Annotated[str, typer.Option(help="From a request to its answer; 503 after")] = "60s",
    ) -> None:
        """Serve a run as a System One server: /v1/systemone, /v1/models, /healthz, /metrics."""
        from observer_core.decision.load import open_model
        from observer_core.rundir import open_run
        from observer_serving import logs
        from observer_serving.config import parse_size
        from observer_serving.systemone.app import SystemOne
        from observer_serving.systemone.card import ModelCard
        from observer_serving.systemone.server import SystemOneServer, open_socket

        try:
            body, seconds = parse_size(max_body), parse_duration(deadline)
        except ValueError as error:
            raise InputError(f"{error}") from None
        limits = Limits(
            batch_tokens=max_batch_tokens,
            request_tokens=max_request_tokens,
            questions=max_questions,
            body=body,
            waiting=max_waiting,
            deadline=seconds,
        )
        key = _key(key_env, key_file)
        opened = open_run(run)
        card = ModelCard.of(opened)
        sock = open_socket(host, port, has_key=key is not None)  # before the model, which may take long to load
        logs.configure()
        model = open_model(opened, backend=backend)
        server = SystemOneServer(SystemOne(model, card, limits=limits, key=key, truncate=truncate_states), sock)
        asyncio.run(server.run(on_ready=lambda ready: print(f"{card.concrete} answers on {ready.url}", flush=True)))


def _key(variable: str | None, file: Path | None) -> str | None:
    """The bearer key: from the file, from the named variable, or from the default one when that is set.

    Raises:
        InputError: a file or variable that was named gives none, or both were named.
    """
    if variable is not None and file is not None:
        raise InputError("both --key-env and --key-file are given; leave one out")
    if file is not None:
        try:
            key, source = file.read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the key file {file} ({error}); give --key-file a text file") from None
    else:
        source = variable or KEY_VARIABLE
        key = os.environ.get(source, "").strip()
        if not key and variable is None:
            return None
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(f"{source} holds no usable key; put one line of printable ASCII there")
    return key
