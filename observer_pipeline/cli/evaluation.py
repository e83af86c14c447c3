"""`observer evaluate` and `observer compare`: runs on labeled traces, with intervals and the gate's verdict."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from observer_core.decision.jev.cost import MAX_USD
from observer_core.errors import InputError

Split = Literal["test", "all"]
Data = Annotated[str, typer.Option(help="JSONL, an OTLP span file, a folder of them, or phoenix://host:port/project")]
Out = Annotated[Path | None, typer.Option(help="Folder for metrics.json, predictions.parquet, report.md, report.html")]
SplitOption = Annotated[Split, typer.Option(help="test: questions no run is trained on; all: every labeled trace")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object")]
SkipInvalid = Annotated[bool, typer.Option("--skip-invalid", help="Leave out traces that cannot be read")]


def register(app: typer.Typer) -> None:
    @app.command("evaluate")
    def evaluate_command(
        run: Annotated[Path, typer.Option(help="Run directory")],
        data: Data,
        out: Out = None,
        split: SplitOption = "test",
        baseline: Annotated[
            Path | None, typer.Option(help="Run directory to beat; the built-in heuristic when not given")
        ] = None,
        as_json: Json = False,
        skip_invalid: SkipInvalid = False,
    ) -> None:
        """Metrics and a report of a run on labeled traces."""
        from observer_core.decision.builtin import BuiltinScorer
        from observer_core.metrics.report import build_report
        from observer_pipeline.cli import evaluating

        runs = evaluating.open_runs([run] if baseline is None else [run, baseline])
        traces, notes = evaluating.choose_traces(data, evaluating.read_labeled(data, skip_invalid=skip_invalid), split)
        scorers = evaluating.load_scorers(runs) | ({evaluating.BUILTIN: BuiltinScorer()} if baseline is None else {})
        predictions = evaluating.score_all(scorers, traces)
        scorer, beside = list(scorers)
        report = build_report(
            predictions,
            scorer=scorer,
            baseline=beside,
            title=f"Evaluation of {run}",
            notes=notes,
            warning=evaluating.leakage(traces, runs),
            run=str(run),
        )
        evaluating.deliver(report, predictions, out, as_json=as_json)

    @app.command("compare")
    def compare_command(
        runs: Annotated[list[Path], typer.Option(help="Run directories: first the champion, last the challenger")],
        data: Data,
        more: Annotated[list[Path] | None, typer.Argument(help="Further run directories", show_default=False)] = None,
        out: Out = None,
        split: SplitOption = "test",
        jev: Annotated[
            bool, typer.Option("--jev", help="Also Jev, or the server TYPESAFE_BASE_URL names; needs TYPESAFE_API_KEY")
        ] = False,
        yes: Annotated[bool, typer.Option("--yes", help="Agree to what asking Jev costs, whatever it is")] = False,
        max_usd: Annotated[float, typer.Option(help="What asking Jev may cost without --yes, in US dollars")] = MAX_USD,
        as_json: Json = False,
        skip_invalid: SkipInvalid = False,
    ) -> None:
        """Runs side by side on the same traces; the gate judges the last against the first.

        Jev is set beside them, calibrated on the calibration split of the same data; without a key the report says
        that it was not run.
        """
        import pyarrow as pa

        from observer_core.decision.protocol import NotRunError
        from observer_core.metrics.report import build_report
        from observer_pipeline.cli import evaluating

        opened = evaluating.open_runs([*runs, *(more or [])])
        if len(opened) < 2 and not jev:
            raise InputError("one run cannot be compared; give --runs A B, or use 'observer evaluate'")
        every = evaluating.read_labeled(data, skip_invalid=skip_invalid)
        traces, notes = evaluating.choose_traces(data, every, split)
        predictions = evaluating.score_all(evaluating.load_scorers(opened), traces)
        not_run: dict[str, str] = {}
        if jev:
            try:
                asked, notes[evaluating.JEV] = evaluating.score_jev(every.labeled, traces, None if yes else max_usd)
                predictions = pa.concat_tables([predictions, asked])
            except NotRunError as error:
                not_run[evaluating.JEV] = str(error)
        names = list(opened)
        champion, challenger = names[0], names[-1]
        report = build_report(
            predictions,
            scorer=challenger,
            champion=champion if champion != challenger else None,
            title=f"Comparison of {', '.join([*opened, *([evaluating.JEV] if jev else [])])}",
            notes=notes,
            not_run=not_run,
            warning=evaluating.leakage(traces, opened),
            run=str(opened[challenger].path),
        )
        evaluating.deliver(report, predictions, out, as_json=as_json)
