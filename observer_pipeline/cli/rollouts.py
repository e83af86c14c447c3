"""`observer rollouts regrade|emit|analyze|query LOG` and `observer mcp`: training runs as telemetry."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from observer_core.errors import InputError, ObserverError
from observer_core.home import Home

Log = Annotated[Path, typer.Argument(help="Rollout log: a Parquet or JSONL file, or a folder of them")]
ColumnOption = Annotated[list[str] | None, typer.Option("--column", help="MEANING=COLUMN, e.g. completion=output")]
RewardColumns = Annotated[str | None, typer.Option("--rewards", help="The log's reward columns, joined by commas")]
Dataset = Annotated[Path | None, typer.Option(help="The prompts' data set (gold answers), joined by prompt")]
RunName = Annotated[str | None, typer.Option("--run", help="Name of the run; the log's name by default")]
RewardSpecs = Annotated[
    list[str] | None, typer.Option("--reward", help="Reward to run: NAME, or [COLUMN=]module:function")
]
Workers = Annotated[int, typer.Option(help="Processes; 0: one per CPU")]
Timeout = Annotated[float, typer.Option(help="Seconds that one call of a reward may take")]
Plain = Annotated[bool | None, typer.Option("--plain/--objects", help="Completions are plain text, or JSON objects")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Stored RL training runs: re-grade, trace, find what went wrong, ask.", no_args_is_help=True
    )
    group.command("regrade")(regrade_command)
    group.command("emit")(emit_command)
    group.command("analyze")(analyze_command)
    group.command("query")(query_command)
    app.add_typer(group, name="rollouts")
    app.command("mcp")(mcp_command)


def open_log(log: Path, column: list[str] | None, rewards: str | None, dataset: Path | None, run: str | None) -> Any:
    """The log with the columns named on the command line.

    Raises:
        InputError: a column option that is not MEANING=COLUMN, or a log that cannot be read.
    """
    from observer_core.rollouts.columns import Columns
    from observer_core.rollouts.reading import RolloutLog

    meanings = {f.name for f in fields(Columns)} - {"rewards"}
    given: dict[str, Any] = {}
    for option in column or ():
        meaning, equals, name = option.partition("=")
        if not equals or meaning not in meanings:
            raise InputError(
                f"--column {option!r}: write MEANING=COLUMN with a meaning of: {', '.join(sorted(meanings))}"
            )
        given[meaning] = name
    if rewards is not None:
        given["rewards"] = tuple(name.strip() for name in rewards.split(",") if name.strip())
    return RolloutLog(log, Columns(**given), dataset=dataset, run=run)


def regrade_command(
    log: Log,
    reward: RewardSpecs = None,
    column: ColumnOption = None,
    rewards: RewardColumns = None,
    dataset: Dataset = None,
    run: RunName = None,
    tolerance: Annotated[float, typer.Option(help="Largest relative drift that passes")] = 1e-6,
    out: Annotated[Path | None, typer.Option(help="Folder for regraded.parquet and fidelity.json")] = None,
    workers: Workers = 0,
    timeout: Timeout = 10.0,
    plain: Plain = None,
    as_json: AsJson = False,
) -> None:
    """Run the rewards again and compare with the logged scores; exit 1 when they differ."""
    from observer_core.rollouts.regrade import GradeOptions, previous_revisions, regrade, rewards_for

    source = open_log(log, column, rewards, dataset, run)
    chosen = rewards_for(source, reward or [])
    options = GradeOptions(workers, timeout, plain, tolerance)
    previous = previous_revisions(out) if out else None
    with progress_of("completions") as report:
        result = regrade(source, chosen, options, out=out, previous=previous, progress=report)
    print_problems(source)
    sentence = result.fidelity.sentence(result.changed)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        drift = result.fidelity.rewards.items()
        print_table(
            ("reward", "rows", "largest drift", "mean drift", "above", "scored once", "precision"),
            (
                (n, d.rows, f"{d.max:.2e}", f"{d.mean:.2e}", d.differs, d.state_differs, d.precision or "differs")
                for n, d in drift
            ),
        )
        for (name, kind), count in sorted(result.failures.items()):
            print(f"{name}: {count} × {kind}")
        for name in result.switched_off:
            print(f"{name} was switched off: it hung too often")
        print(f"{result.rows} completions, {len(result.steps)} steps: {sentence}")
    if not result.fidelity.holds:
        raise ObserverError(f"{sentence}; the log cannot be trusted to mean what these rewards mean")


def emit_command(
    log: Log,
    endpoint: Annotated[str, typer.Option(help="OTLP/HTTP address for traces")] = "http://127.0.0.1:6006/v1/traces",
    project: Annotated[str, typer.Option(help="Phoenix project")] = "rollouts",
    rate: Annotated[
        float | None, typer.Option(help="Spans per second at most; Phoenix on SQLite keeps up with about 80")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, e.g. authorization=Bearer …")] = None,
    weight: Annotated[list[str] | None, typer.Option(help="NAME=WEIGHT of a reward in the run's total")] = None,
    restart: Annotated[bool, typer.Option(help="Send everything, even steps that were sent before")] = False,
    reward: RewardSpecs = None,
    column: ColumnOption = None,
    rewards: RewardColumns = None,
    dataset: Dataset = None,
    run: RunName = None,
    workers: Workers = 0,
    timeout: Timeout = 10.0,
    plain: Plain = None,
    as_json: AsJson = False,
) -> None:
    """Send the run as spans, one trace per step; an interrupted one goes on where it stopped."""
    from observer_core.rewards.registry import find_rewards, known_rewards
    from observer_core.rollouts.emit import EmitOptions, emit
    from observer_core.rollouts.regrade import GradeOptions

    source = open_log(log, column, rewards, dataset, run)
    chosen = find_rewards(reward) if reward else known_rewards(source.rewards)
    key = hashlib.sha256(f"{source.run}\n{log.resolve()}\n{endpoint}\n{project}".encode()).hexdigest()[:16]
    home = Home.from_env()
    state = home.ensure(home.root / "rollouts") / f"emit-{key}.json"
    if restart:
        state.unlink(missing_ok=True)
    weights = {name: as_number("--weight", value) for name, value in pairs("--weight", weight)}
    options = EmitOptions(
        endpoint, project, headers=dict(pairs("--header", header)), rate=rate, weights=weights, state=state
    )
    with progress_of("spans") as report:
        result = emit(
            source, chosen, options, GradeOptions(workers, timeout, plain), progress=report,
            waiting=lambda why: print(f"observer: {why}", file=sys.stderr),
        )  # fmt: skip
    print_problems(source)
    if as_json:
        print(json.dumps(result.to_json()))
        return
    resumed = f" (after {result.resumed_steps} steps sent before)" if result.resumed_steps else ""
    print(f"{result.spans} spans of {result.completions} completions in {result.steps} steps were taken{resumed}")


def analyze_command(
    log: Log,
    column: ColumnOption = None,
    rewards: RewardColumns = None,
    dataset: Dataset = None,
    run: RunName = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the report: evidence, plots, report.md")] = None,
    rows: Annotated[int | None, typer.Option(help="Evidence rows shown per finding; all by default")] = None,
    group_size: Annotated[int | None, typer.Option(help="Completions per prompt; inferred by default")] = None,
    poor: Annotated[float, typer.Option(help="A quality below it is bad")] = 0.25,
    plain: Plain = None,
    as_json: AsJson = False,
) -> None:
    """Find collapses, exploits, habits and failures in a run, each with its evidence."""
    from observer_core.rollouts.features import extract
    from observer_core.rollouts.findings import Settings, analyze

    source = open_log(log, column, rewards, dataset, run)
    with progress_of("completions") as report:
        features = extract(source, plain=plain, group_size=group_size, progress=report)
    problems = source.problems.to_json()
    print_problems(source)
    analysis = analyze(features, Settings(poor=poor))
    if out:
        from observer_core.rollouts.report import write_report

        write_report(out, analysis, source)
    if as_json:
        print(json.dumps({**analysis.to_json(rows), "problems": problems}))
        return
    for finding in analysis.findings:
        print(f"{finding.kind}: {finding.sentence}")
        print(f"  rows {', '.join(map(str, finding.rows[:10].tolist()))}{' …' if finding.count > 10 else ''}")
    found = f"{len(analysis.findings)} findings" if analysis.findings else "nothing found"
    size = f"{len(features)} completions, {len(features.steps)} steps"
    print(f"{size}: {found}, {len(analysis.rejected)} hypotheses rejected")


def query_command(
    log: Log,
    question: Annotated[str | None, typer.Argument(help="A ready-made question; none lists them")] = None,
    sql: Annotated[
        str | None, typer.Option(help="One SELECT over spans, steps, completions, rewards, completion_rewards")
    ] = None,
    parameter: Annotated[list[str] | None, typer.Option("--set", help="NAME=NUMBER in place of a default")] = None,
    limit: Annotated[int, typer.Option(help="Rows at most")] = 1000,
    reward: RewardSpecs = None,
    column: ColumnOption = None,
    rewards: RewardColumns = None,
    dataset: Dataset = None,
    run: RunName = None,
    workers: Workers = 0,
    timeout: Timeout = 10.0,
    plain: Plain = None,
    as_json: AsJson = False,
) -> None:
    """Ask a run: its spans are stored once and then answer in SQL."""
    from observer_core.rewards.registry import find_rewards, known_rewards
    from observer_core.rollouts.ready import QUESTIONS
    from observer_core.rollouts.regrade import GradeOptions
    from observer_core.rollouts.sql import BoundedSql, Limits
    from observer_core.rollouts.store import VIEWS, store_is_current, write_store

    if question is None and sql is None:
        print_table(("question", "asks", "--set"), ((n, q.asks, settings(q.parameters)) for n, q in QUESTIONS.items()))
        return
    values: dict[str, Any] = {name: as_number("--set", value) for name, value in pairs("--set", parameter)}
    if sql is None:
        if question not in QUESTIONS:
            raise InputError(f"no question {question!r}; there are: {', '.join(QUESTIONS)}")
        chosen = QUESTIONS[question]
        unknown = set(values) - set(chosen.parameters)
        if unknown:
            raise InputError(
                f"{question} has no {', '.join(sorted(unknown))}; it has: {settings(chosen.parameters) or 'none'}"
            )
        sql, values = chosen.sql, {**chosen.parameters, **values}
    source = open_log(log, column, rewards, dataset, run)
    home = Home.from_env()
    folder = home.ensure(home.warehouse / "rollout_spans") / f"run={safe_name(source.run)}"
    if reward or not store_is_current(source, folder):
        graded = find_rewards(reward) if reward else known_rewards(source.rewards)
        with progress_of("spans") as report:
            write_store(source, graded, folder, GradeOptions(workers, timeout, plain), progress=report)
        print_problems(source)
    with BoundedSql({"spans": [folder]}, VIEWS, Limits(seconds=120, rows=limit, memory_mb=2048)) as engine:
        answer = engine.query(sql, values)
    if as_json:
        print(json.dumps({"columns": answer.columns, "rows": answer.rows, "truncated": answer.truncated}))
        return
    print_table(answer.columns, answer.rows)
    if answer.truncated:
        print(f"cut: {answer.truncated}", file=sys.stderr)


def mcp_command(
    seconds: Annotated[float, typer.Option(help="Time limit of one query")] = 10.0,
    rows: Annotated[int, typer.Option(help="Row limit of one answer")] = 1000,
) -> None:
    """Serve decisions, traces and rollouts to an assistant, read-only, by the Model Context Protocol on stdin and
    stdout.
    """
    from observer_core.rollouts.sql import Limits

    try:
        from observer_pipeline.mcp_server import build_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise InputError("observer mcp needs the package mcp; install observer-pipeline[mcp]") from error

    build_server(Home.from_env(), Limits(seconds=seconds, rows=rows)).run("stdio")


def pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    """NAME=VALUE options, split."""
    found = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"{option} {text!r}: write NAME=VALUE")
        found.append((name, value))
    return found


def as_number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{option}: {text!r} is not a number") from error


def settings(parameters: dict[str, float]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in parameters.items())


def safe_name(run: str) -> str:
    """A run's name as the name of a folder."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in run)[:80]
    return plain if plain == run else f"{plain}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


class progress_of:
    """A progress counter on standard error: a moving line on a terminal, a plain line every 100,000 elsewhere."""

    def __init__(self, what: str) -> None:
        self._what, self._last = what, 0

    def __enter__(self) -> Callable[[int], None]:
        return self._report

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty() and self._last:
            print(file=sys.stderr)

    def _report(self, done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done:,} {self._what}", end="", file=sys.stderr, flush=True)
        elif done // 100_000 > self._last // 100_000:
            print(f"{done:,} {self._what}", file=sys.stderr, flush=True)
        self._last = done


def print_problems(log: Any) -> None:
    for line in log.problems.lines():
        print(f"observer: {line}", file=sys.stderr)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
