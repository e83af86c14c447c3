"""`observer train` and `observer score`: make a decision model, and use one on a single trace."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from observer_core.errors import InputError
from observer_pipeline.cli.progress import progress_bar
from observer_pipeline.cli.slices import read_input

SHOWN = {
    "auroc": "AUROC",
    "recall_at_5pct": "recall at 5 % review",
    "recall_at_20pct": "recall at 20 % review",
    "brier": "Brier score",
}
PHOENIX = {"name": "phoenix", "endpoint": "http://127.0.0.1:6006/v1/traces", "project": "observer"}


def register(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("score")(score)


def train(
    family: Annotated[str, typer.Option(help="laya | baseline")],
    data: Annotated[str, typer.Option(help="JSONL file, OTLP span file, folder, or phoenix://host:port/project")],
    out: Annotated[Path, typer.Option(help="Run directory to make")],
    preset: Annotated[str, typer.Option(help="Starting point: a preset or an encoder's folder")] = "laya-mini",
    init_from: Annotated[Path | None, typer.Option(help="An earlier run to go on from")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training rows")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of LoRA on the encoder")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of a row: question, options, state")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same data: same weights")] = 0,
    weights: Annotated[bool, typer.Option(help="Count each trace by 1 / its selection probability")] = False,
    onnx: Annotated[bool, typer.Option(help="Export a graph, so that serving needs no torch")] = True,
    skip_invalid: Annotated[bool, typer.Option(help="Leave out lines that cannot be read")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON")] = False,
) -> None:
    """Train a decision model, calibrate it, and evaluate it on held-out questions beside the baseline."""
    if family not in ("laya", "baseline"):
        raise InputError(f"unknown family '{family}'; this version trains laya and baseline")
    if out.exists():
        raise InputError(f"{out} exists already; choose another folder or remove it first")
    from observer_core.decision.training.options import TrainOptions
    from observer_core.metrics.evaluate import evaluate
    from observer_core.metrics.predictions import read_predictions, scorers_of
    from observer_core.rundir import PREDICTIONS
    from observer_pipeline.sources import load_traces

    options = TrainOptions(family=family, preset=preset, init_from=init_from, seed=seed, onnx=onnx, weights=weights)
    given = {"epochs": epochs, "learning_rate": lr, "max_tokens": max_tokens}
    options = replace(options, **{name: value for name, value in given.items() if value is not None})
    traces = load_traces(data, skip_invalid=skip_invalid)
    from observer_core.decision.train import train_run

    with progress_bar() as progress:
        run = train_run(traces, out, options, progress=progress)
    predictions = read_predictions(run.path / PREDICTIONS)
    figures = {name: evaluate(predictions, name)["all"] for name in scorers_of(predictions)}
    if as_json:
        body = {name: {key: each.to_json() for key, each in all_.items()} for name, all_ in figures.items()}
        print(json.dumps({"run": str(out), "version": run.version, "metrics": body}))
        return
    n = run.manifest.heldout
    print(
        f"{out}: {run.manifest.model}, evaluated on {n['n']} traces of held-out questions, {n['base_rate']:.1%} wrong"
    )
    names = list(figures)
    print(f"  {'':<22} " + " ".join(f"{name:>24}" for name in names))
    for key, title in SHOWN.items():
        print(f"  {title:<22} " + " ".join(f"{_shown(figures[name][key]):>24}" for name in names))
    print("  in brackets: 95 % intervals, clustered by user question")
    print(f"report: {out / 'report.html'}")
    print(f"serve:  observer serve with scorer: {{kind: local, run: {out}}} in observer.yaml")


def _shown(estimate: Any) -> str:
    if estimate.value is None:
        return f"not known ({estimate.reason})"
    interval = "" if estimate.lo is None else f" [{estimate.lo:.3f}, {estimate.hi:.3f}]"
    return f"{estimate.value:.3f}{interval}"


def score(
    file: Annotated[str, typer.Argument(help="A trace as JSON, or its OTLP spans; - for standard input")],
    run: Annotated[Path | None, typer.Option(help="Run directory; without it the built-in heuristic")] = None,
    config: Annotated[Path | None, typer.Option(help="observer.yaml, for its policy and back ends")] = None,
    export: Annotated[bool, typer.Option(help="Send the trace on if it is kept")] = False,
) -> None:
    """Print the decision for one trace as JSON; nothing is recorded."""
    from observer_core.home import Home
    from observer_serving.config import ExporterSettings, read_settings
    from observer_serving.oneshot import decide_once, export_once, read_candidate
    from observer_serving.score import ModelChoice

    settings = read_settings(config)
    candidate = read_candidate(read_input(file), settings, source=file)
    choice = ModelChoice(kind="builtin") if run is None else ModelChoice(kind="local", run=str(run))
    decision = decide_once(candidate, choice, settings, Home.from_env())
    if export and decision.decision == "keep":
        for back_end in settings.exporters or (ExporterSettings.model_validate(PHOENIX),):
            export_once(candidate, decision, back_end)
        decision = replace(decision, exported=True)
    print(json.dumps(decision.to_json()))
