"""`observer stack` and `observer calibrate`: a new run from a trained one, without training the model again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from observer_core.errors import InputError
from observer_core.rundir import open_run
from observer_pipeline.cli.progress import progress_bar

Data = Annotated[str, typer.Option(help="JSONL, an OTLP span file, a folder of them, or phoenix://host:port/project")]
SkipInvalid = Annotated[bool, typer.Option("--skip-invalid", help="Leave out traces that cannot be read")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object")]


def register(app: typer.Typer) -> None:
    app.command("stack")(stack)
    app.command("calibrate")(calibrate)


def stack(
    run: Annotated[Path, typer.Option(help="Run directory of kev or laya")],
    data: Data,
    out: Annotated[Path, typer.Option(help="Run directory to make")],
    weights: Annotated[bool, typer.Option(help="Count each trace by 1 / its selection probability")] = False,
    skip_invalid: SkipInvalid = False,
    as_json: Json = False,
) -> None:
    """Put a model's logit and the baseline's features into one calibrated logistic layer: a run of family stacked.

    Give the data the model was trained on: the layer is fitted on the calibration split, and the report compares it
    with its parts on the test split.
    """
    _refuse_existing(out)
    base = open_run(run)
    from observer_core.decision.stack import stack_run
    from observer_core.metrics.evaluate import evaluate
    from observer_core.metrics.predictions import read_predictions, scorers_of
    from observer_core.rundir import PREDICTIONS
    from observer_pipeline.sources import load_traces

    traces = load_traces(data, skip_invalid=skip_invalid)
    with progress_bar() as progress:
        made = stack_run(base, traces, out, weights=weights, progress=progress)
    predictions = read_predictions(made.path / PREDICTIONS)
    figures = {name: evaluate(predictions, name)["all"] for name in scorers_of(predictions)}
    if as_json:
        body = {name: {key: each.to_json() for key, each in all_.items()} for name, all_ in figures.items()}
        print(json.dumps({"run": str(out), "version": made.version, "metrics": body}, allow_nan=False))
        return
    print(f"{out}: {made.manifest.model} on {made.manifest.heldout['n']} traces of held-out questions")
    for name, metrics in figures.items():
        print(f"  {name:<28} AUROC {metrics['auroc']}   Brier score {metrics['brier']}")
    print(f"report: {out / 'report.html'}")


def calibrate(
    run: Annotated[Path, typer.Option(help="Run directory")],
    data: Annotated[str, typer.Option(help="Live traces with verdicts: JSONL with keep_probability and so on")],
    out: Annotated[Path, typer.Option(help="Run directory to make; RUN itself never changes")],
    all_questions: Annotated[
        bool, typer.Option("--all-questions", help="Also verdicts of training and test questions; RUN never saw them")
    ] = False,
    skip_invalid: SkipInvalid = False,
    as_json: Json = False,
) -> None:
    """Refit a run's bias to live traffic, where another share of answers is wrong than in its calibration split.

    Only verdicts with a recorded keep and review probability count, each for 1 / (keep × review) traces. Slope, shape
    and ranking stay.
    """
    _refuse_existing(out)
    opened = open_run(run)
    from observer_core.decision.recalibrate import refit_bias
    from observer_pipeline.sources import load_traces

    made, refit, verdicts = refit_bias(
        opened, load_traces(data, skip_invalid=skip_invalid), out, all_questions=all_questions
    )
    if as_json:
        body = {
            "run": str(out),
            "version": made.version,
            "shift": refit.shift.to_json(),
            "n_effective": refit.n_effective,
            "mean_before": refit.before,
            "mean_after": refit.after,
            "left_out": {"unrecorded": verdicts.unrecorded, "seen": verdicts.seen},
        }
        print(json.dumps(body, allow_nan=False))
        return
    print(f"{out}: {refit}")
    print(
        f"  left out: {verdicts.unrecorded} verdicts without a recorded keep and review probability, "
        f"{verdicts.seen} of questions the run may have seen"
    )


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise InputError(f"{out} exists already; choose another folder or remove it first")
