"""`observer erase`, `observer policy simulate` and `observer backfill`: what an operator does now and then."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from observer_core.errors import InputError, ObserverError

API_KEY_VARIABLE = "OBSERVER_API_KEY"


def register(app: typer.Typer) -> None:
    policy = typer.Typer(help="Policies.", no_args_is_help=True)
    policy.command("simulate")(simulate_policy)
    app.add_typer(policy, name="policy")
    app.command("erase")(erase)
    app.command("backfill")(backfill_project)


def erase(
    trace_id: Annotated[str, typer.Argument(help="32 hex digits, or the name it was posted under")],
    config: Annotated[Path | None, typer.Option(help="The service's observer.yaml")] = None,
    url: Annotated[str | None, typer.Option(help="The running service; by default where the settings listen")] = None,
) -> None:
    """Erase a trace from log, record, spool, queues and dead letters.

    A running service does it itself (with the admin key in OBSERVER_API_KEY); of one that does not run, its files are
    rewritten. Services that share a record over NATS all do it, those that are down when they come back.
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
            done: dict[str, Any] = asdict(erase_offline(settings, home, wire))
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


def simulate_policy(
    policy: Annotated[Path, typer.Argument(help="A YAML file with `policy:`, such as another observer.yaml")],
    project: Annotated[str | None, typer.Option(help="The policy of this project in that file")] = None,
    since: Annotated[str | None, typer.Option(help="Only decisions from then on (RFC 3339 UTC)")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A rule (or min_share) to leave out; may be repeated")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON")] = False,
) -> None:
    """Replay the recorded decisions under another policy: what it would have kept, by project and recorded reason.

    A rule that looks at what no record holds (spans, tools, attributes) is refused; --without leaves it out.
    """
    from observer_core.home import Home
    from observer_core.simulate import simulate
    from observer_serving.buffer.record import read_decisions
    from observer_serving.clock import as_rfc3339
    from observer_serving.config import SERVICE, read_settings
    from observer_serving.storage import read_storage

    settings, folder = read_settings(policy), Home.from_env().serving
    if project is not None and project not in settings.projects:
        raise InputError(f"{policy} has no projects.{project}; leave --project out or add it")
    other = settings.policy_of(project or SERVICE) or settings.policy
    record, key = read_storage(settings, folder)
    try:
        moment = None if since is None else as_rfc3339(since)
    except ValueError as error:
        raise InputError(f"--since: {error}") from None
    decisions = read_decisions(record, since=moment)
    chosen = (one for one in decisions if project in (None, one.project))
    result = simulate(chosen, other, key, without=without or ())
    if as_json:
        print(json.dumps(result.to_json()))
        return
    total = result.total
    if not total.traces:
        raise InputError("no decisions are on record; let the service decide some first")
    print(f"{total.traces} decisions replayed under policy {result.policy_version}")
    print(f"  {'':<32} {'traces':>9} {'kept':>9} {'would keep':>11} {'both':>9} {'expected':>9}")
    rows = [("all", total)] + [
        (f"{by} {name}", tally) for by, each in result.groups.items() for name, tally in sorted(each.items())
    ]
    for name, tally in rows:
        share = f"{tally.expected / tally.traces:.2%}"
        print(f"  {name:<32} {tally.traces:>9} {tally.kept:>9} {tally.would_keep:>11} {tally.both:>9} {share:>9}")
    for name, why in result.left_out.items():
        print(f"left out: {name}" + (f", which looks at {why}" if why else ""))
    if result.taken_by_left_out:
        print(f"  {result.taken_by_left_out} recorded decisions were taken by such a rule")
    if total.unscored:
        print(f"{total.unscored} decisions have no score: they are replayed as unscored")


def backfill_project(
    source: Annotated[str, typer.Argument(help="phoenix://host:port/project")],
    run: Annotated[Path | None, typer.Option(help="Run directory; without it the scorer of the settings")] = None,
    config: Annotated[Path | None, typer.Option(help="observer.yaml, for its scorer and what it redacts")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON")] = False,
) -> None:
    """Score the traces a Phoenix project already has, as annotations `observer.p_wrong`; again it only updates them.

    The API key is taken from OBSERVER_PHOENIX_API_KEY.
    """
    from observer_pipeline.backfill import backfill
    from observer_pipeline.cli.progress import progress_bar
    from observer_serving.config import read_settings
    from observer_serving.score import ModelChoice, load_model

    settings = read_settings(config)
    choice = ModelChoice.of(settings.scorer) if run is None else ModelChoice("local", str(run.expanduser().resolve()))
    loaded = load_model(choice, settings.scorer, shadows=False)
    with progress_bar() as progress:
        done = backfill(source, loaded, settings.redact, progress=progress)
    if as_json:
        print(json.dumps(asdict(done)))
        return
    print(f"{done.annotated} of {done.traces} traces annotated as observer.p_wrong by {done.identifier}")
    if done.failed:
        print(f"{done.failed} traces got no score")
