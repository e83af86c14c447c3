"""`observer erase`: a trace forgotten by its id."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from observer_core.errors import InputError, ObserverError

API_KEY_VARIABLE = "OBSERVER_API_KEY"


def register(app: typer.Typer) -> None:
    app.command("erase")(erase)


def erase(
    trace_id: Annotated[str, typer.Argument(help="32 hex digits, or the name it was posted under")],
    config: Annotated[Path | None, typer.Option(help="The service's observer.yaml")] = None,
    url: Annotated[str | None, typer.Option(help="The running service; by default where the settings listen")] = None,
) -> None:
    """Erase a trace from log, record, spool, queues and dead letters.

    A running service does it itself (with the admin key in OBSERVER_API_KEY); of one that does not run, its files are
    rewritten.
    """
    from observer_core.home import Home
    from observer_core.traces.to_spans import wire_trace_id
    from observer_serving.config import read_settings
    from observer_serving.erase import erase_offline
    from observer_serving.lock import hold

    settings, home = read_settings(config), Home.from_env()
    wire = wire_trace_id(trace_id)
    held = hold(home.ensure(home.serving))
    if held is not None:
        try:
            done: dict[str, Any] = asdict(erase_offline(home, wire, log=settings.buffer.dir))
        finally:
            os.close(held)
    else:
        address = url or (f"http://{settings.listen.api}" if settings.listen.api else None)
        if address is None:
            raise InputError("the service runs without its API; give --url or stop it first")
        done = _ask(address, wire.hex())
    counts = {name: done[name] for name in ("decisions", "log_items", "spool_rows", "queued")}
    if not any(counts.values()):
        raise InputError(f"nothing of trace {wire.hex()} is kept here; check the id")
    words = ", ".join(f"{count} {name.replace('_', ' ').rstrip('s') if count == 1 else name.replace('_', ' ')}"
                      for name, count in counts.items())  # fmt: skip
    print(f"{wire.hex()} erased: {words}")
    if done["exported"]:
        print("it was sent to a back end before; erase it there too")


def _ask(address: str, trace_id: str) -> dict[str, Any]:
    import httpx

    key = os.environ.get(API_KEY_VARIABLE)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.delete(f"{address.rstrip('/')}/v1/traces/{trace_id}", headers=headers, timeout=120)
    except httpx.HTTPError as error:
        raise ObserverError(f"no answer from {address}: {error}; give its address with --url") from error
    if answer.status_code in (401, 403):
        raise InputError(f"{address} wants an admin key; set {API_KEY_VARIABLE}")
    if not answer.is_success:
        raise ObserverError(f"{address} answered {answer.status_code}: {answer.text[:300]}; try again")
    return answer.json()
