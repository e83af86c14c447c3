"""`observer train` and `observer score`: make a decision model, and use one on a single trace."""

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from observer_core.errors import InputError, ObserverError
from observer_pipeline.cli.progress import progress_bar
from observer_pipeline.cli.rollouts import pairs
from observer_pipeline.cli.slices import read_input

if TYPE_CHECKING:
    from observer_core.decision.train import TrainOptions
    from observer_core.rundir import RunDirectory
    from observer_core.traces.trace import Trace

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
    family: Annotated[str, typer.Option(help="kev | laya | baseline")],
    data: Annotated[str, typer.Option(help="JSONL file, OTLP span file, folder, or phoenix://host:port/project")],
    out: Annotated[Path, typer.Option(help="Run directory to make; OUT.partial keeps what a killed training did")],
    preset: Annotated[
        str | None, typer.Option(help="Starting point: a preset, an encoder's or decoder's folder")
    ] = None,
    base: Annotated[Path | None, typer.Option(help="Kev: the backbone's folder, on machines without a hub")] = None,
    init_from: Annotated[
        Path | None, typer.Option(help="An earlier run or a released checkpoint to go on from; Kev: or a hub id")
    ] = None,
    replay: Annotated[
        str | None, typer.Option(help="Earlier labeled traces, any source as for --data, to mix into the train split")
    ] = None,
    replay_share: Annotated[float | None, typer.Option(help="Their share of the mix  [default: 0.3]")] = None,
    replay_rows: Annotated[int | None, typer.Option(help="That many of them instead of a share")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training rows")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of LoRA and head together")] = None,
    head_epochs: Annotated[
        float | None, typer.Option(help="Passes of a new head alone, before LoRA; not with --init-from")
    ] = None,
    head_lr: Annotated[
        float | None, typer.Option(help="Learning rate of a new head alone; not with --init-from")
    ] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Rank of the adapters; Kev: not with --init-from")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of a row: question, options, state")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Padded tokens computed at once, so memory")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches whose gradients make one optimiser step")] = None,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, about a third slower; the same result")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="auto | fp32 | bf16; auto is bf16 on a GPU that has it, else fp32")
    ] = "auto",
    patience: Annotated[int | None, typer.Option(help="Worse evaluations in a row before it stops early")] = None,
    failure: Annotated[
        bool, typer.Option("--failure", help="Also learn which seeded fault a trace has (a choice)")
    ] = False,
    permute_options: Annotated[
        bool, typer.Option(help="Choice options in a new order each epoch; noul and score have a fixed one")
    ] = True,
    seed: Annotated[int, typer.Option(help="Same seed, same data: same weights, bit for bit on a CPU")] = 0,
    weights: Annotated[bool, typer.Option(help="Count each trace by 1 / its selection probability")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of going on from OUT.partial")] = False,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="Seconds between checkpoints  [default: 60]")] = None,
    checkpoint_steps: Annotated[int | None, typer.Option(help="Also a checkpoint every so many steps")] = None,
    otlp: Annotated[
        str | None, typer.Option(help="OTLP/HTTP address, such as http://127.0.0.1:4318: a trace per optimiser step")
    ] = None,
    otlp_header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE sent along, such as a key")] = None,
    onnx: Annotated[bool, typer.Option(help="Export a graph, so that serving needs no torch")] = True,
    int8: Annotated[bool, typer.Option("--int8", help="Also export a quantised graph, and serve that one")] = False,
    skip_invalid: Annotated[bool, typer.Option(help="Leave out lines that cannot be read")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON")] = False,
) -> None:
    """Train a decision model, calibrate it, and evaluate it on held-out questions beside the baseline.

    A training that was killed goes on when the same command is given again, and ends with the same weights. Everything
    is logged to MLflow when MLFLOW_TRACKING_URI is set (experiment MLFLOW_EXPERIMENT_NAME, default observer).
    """
    if family not in ("kev", "laya", "baseline"):
        raise InputError(f"unknown family '{family}'; this version trains kev, laya and baseline")
    if out.exists():
        raise InputError(f"{out} exists already; choose another folder or remove it first")
    if replay is None and (replay_share is not None or replay_rows is not None):
        raise InputError("--replay-share and --replay-rows need --replay SRC; name the earlier traces")
    if replay_share is not None and replay_rows is not None:
        raise InputError("--replay-share and --replay-rows contradict each other; give one of them")
    from observer_core.decision.training.options import TrainOptions, refuse_idle

    values = {
        "epochs": epochs,
        "learning_rate": lr,
        "head_epochs": head_epochs,
        "head_learning_rate": head_lr,
        "lora_rank": lora_rank,
        "max_tokens": max_tokens,
        "tokens_per_batch": batch_tokens,
        "accumulate": accumulate,
        "patience": patience,
        "replay_share": replay_share,
        "replay_rows": replay_rows,
        "checkpoint_seconds": checkpoint_seconds,
        "checkpoint_steps": checkpoint_steps,
    }
    given = {name: value for name, value in values.items() if value is not None}
    if init_from is not None:
        refuse_idle(family, given)
    options = TrainOptions(
        family=family,
        preset=preset,
        base=base,
        init_from=init_from,
        gradient_checkpointing=gradient_checkpointing,
        precision=precision,  # pyright: ignore[reportArgumentType]  # TrainOptions checks it
        failure=failure,
        permute_options=permute_options,
        seed=seed,
        onnx=onnx,
        int8=int8,
        weights=weights,
        **given,
    )
    headers = dict(pairs("--otlp-header", otlp_header))
    mlflow_uri = mlflow_address()
    from observer_core.decision.training.telemetry import Telemetry, traces_url
    from observer_core.metrics.evaluate import evaluate
    from observer_core.metrics.predictions import read_predictions, scorers_of
    from observer_core.rundir import PREDICTIONS
    from observer_pipeline.sources import load_traces

    if otlp is not None:
        traces_url(otlp)
    traces = load_traces(data, skip_invalid=skip_invalid)
    how: dict[str, Any] = {
        "replay": load_traces(replay, skip_invalid=skip_invalid) if replay else (),
        "fresh": fresh,
        "telemetry": None if otlp is None else Telemetry(otlp, out.name, headers=headers),
    }
    with progress_bar() as progress:
        run = _train(traces, out, options, mlflow_uri, progress=progress, **how)
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
    for name, note in run.manifest.training.get("notes", {}).items():
        print(f"{name.lower()}: {note}")
    print(f"report: {out / 'report.html'}")
    print(f"serve:  observer serve with scorer: {{kind: local, run: {out}}} in observer.yaml")


def mlflow_address() -> str | None:
    """MLflow's store, if `MLFLOW_TRACKING_URI` names one.

    Raises:
        InputError: it does, and mlflow is not installed.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri and importlib.util.find_spec("mlflow") is None:
        raise InputError(
            "MLFLOW_TRACKING_URI is set but mlflow is not installed; install observer-pipeline[pipeline] or unset it"
        )
    return uri or None


def _train(
    traces: "list[Trace]", out: Path, options: "TrainOptions", mlflow_uri: str | None, **how: Any
) -> "RunDirectory":
    if mlflow_uri is None:
        from observer_core.decision.train import train_run

        return train_run(traces, out, options, **how)
    # A server that is not there should be named soon; its own default is to try for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow.exceptions import MlflowException

    from observer_pipeline.resources.tracking import MlflowResource
    from observer_pipeline.training import train_tracked

    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "observer"
    mlflow = MlflowResource(tracking_uri=mlflow_uri, ui_url=mlflow_uri, experiment=experiment)
    try:
        with mlflow.start_run(out.resolve().name) as tracked:
            return train_tracked(traces, out, options, tracked, warn=_warn, **how)
    except MlflowException as error:
        what = " ".join(str(error).split())[:200]
        whole = f"; {out} is whole" if out.exists() else ""
        raise ObserverError(
            f"MLflow at {mlflow_uri} fails ({what}){whole}; start it, or unset MLFLOW_TRACKING_URI to train without"
        ) from error


def _warn(message: str) -> None:
    print(f"observer: {message}", file=sys.stderr)


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
