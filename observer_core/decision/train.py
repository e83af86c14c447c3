"""From labeled traces to a run directory: train, calibrate, export, evaluate beside the baseline, seal."""

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from observer_core.decision.baseline import BaselineModel
from observer_core.decision.finish import baseline_manifest, finish_run
from observer_core.decision.scorer import baseline_scorer
from observer_core.decision.training.checkpoints import open_checkpoints
from observer_core.decision.training.data import Part, Replay, data_sha, draw_replay, split_traces
from observer_core.decision.training.options import BASELINE, TrainOptions
from observer_core.decision.training.progress import MetricSink, Progress, no_metric, no_progress, part
from observer_core.decision.training.session import Session
from observer_core.decision.training.telemetry import Delivered, Telemetry
from observer_core.errors import InputError
from observer_core.rundir import CHECKPOINT, Manifest, RunDirectory, new_run, open_run
from observer_core.traces.trace import Split, Trace

__all__ = ["TrainOptions", "train_run"]

# A new family is one module that trains it and one line here; torch is imported when one is trained.
WRITERS = {
    "laya": ("observer_core.decision.laya.run", "write_laya"),
    "kev": ("observer_core.decision.kev.run", "write_kev"),
}
NOT_DECIDING = frozenset({"checkpoint_seconds", "checkpoint_steps", "onnx", "int8", "preset", "base", "init_from"})
"""Options that may differ when a killed training goes on: the weights do not depend on them. What it starts from is
compared by its fingerprint, wherever it lies."""


def train_run(
    traces: Sequence[Trace],
    out: Path,
    options: TrainOptions,
    *,
    replay: Sequence[Trace] = (),
    fresh: bool = False,
    telemetry: Telemetry | None = None,
    progress: Progress | None = None,
    on_metric: MetricSink | None = None,
) -> RunDirectory:
    """Train and write a whole run directory to `out`, or nothing.

    Trains on the split `train`, stops early on `validation`, calibrates on `calibration`, and evaluates once on `test`,
    beside the baseline fitted on the same rows. Traces without a label are left out.

    A training that was killed leaves `<out>.partial` behind; the same call goes on from it and ends with the same
    weights, predictions and metrics.

    Args:
        replay: earlier labeled traces, of which some are mixed into the split `train` (`draw_replay`).
        fresh: begin anew even if `<out>.partial` is there.
        telemetry: where to send each step as spans; closed here.

    Raises:
        InputError: `out` exists, a split has too few traces of a class, the starting point cannot be used, or
            `<out>.partial` is of another training.
        TrainingFailedError: the training diverged or collapsed.
    """
    progress, on_metric = progress or no_progress, on_metric or no_metric
    if out.exists():
        raise InputError(f"{out} exists already; choose another folder or remove it first")
    with contextlib.ExitStack() as stack:
        if telemetry is not None:
            stack.callback(telemetry.close)
        drawn = _draw(traces, replay, options) if replay else None
        parts = split_traces(traces, weights=options.weights, replay=drawn.traces if drawn else ())
        facts = _facts(parts, drawn, options, progress, on_metric)
        checkpoints = None
        if options.family != BASELINE:
            checkpoints = stack.enter_context(
                open_checkpoints(
                    out,
                    _identity(parts, options),
                    fresh=fresh,
                    seconds=options.checkpoint_seconds,
                    steps=options.checkpoint_steps,
                )
            )
        session = Session(checkpoints, telemetry)
        with new_run(out) as folder:
            _write_run(folder, out, parts, options, facts, session, progress, on_metric)
    progress("done", 1.0)
    return open_run(out)


def _write_run(
    folder: Path,
    out: Path,
    parts: Mapping[Split, Part],
    options: TrainOptions,
    facts: "_Facts",
    session: Session,
    progress: Progress,
    on_metric: MetricSink,
) -> None:
    train = parts["train"]
    baseline = BaselineModel.fit(train.traces, train.wrong, train.weight)
    if options.family == BASELINE:
        (folder / CHECKPOINT).mkdir()
        baseline.save(folder / CHECKPOINT)
        manifest = baseline_manifest()
    else:
        training = part(progress, 0.0, 0.85)
        write = _writer(options.family)
        manifest = write(folder, parts, options, session=session, progress=training, on_metric=on_metric)
    if session.telemetry is not None and options.family != BASELINE:
        facts.add_telemetry(session.telemetry.close())
    manifest.train_data_sha = data_sha(train.traces)
    manifest.training = facts.recorded
    finish_run(
        folder,
        manifest,
        parts,
        {} if options.family == BASELINE else {BASELINE: baseline_scorer(baseline)},
        out=out,
        notes=facts.notes,
        progress=part(progress, 0.85, 1.0),
    )


def _writer(family: str) -> Callable[..., Manifest]:
    """The function that trains a family and writes its part of the run directory."""
    module, function = WRITERS[family]
    return getattr(importlib.import_module(module), function)


@dataclass(slots=True)
class _Facts:
    """What a run says of how it was trained: `notes` to people, `recorded` in its manifest."""

    notes: dict[str, str] = field(default_factory=dict)
    recorded: dict[str, Any] = field(default_factory=dict)

    def add_telemetry(self, delivered: Delivered) -> None:
        self.notes["Telemetry"] = str(delivered)
        self.recorded["telemetry"] = {"sent": delivered.sent, "lost": delivered.lost}


def _facts(
    parts: Mapping[Split, Part],
    replay: Replay | None,
    options: TrainOptions,
    progress: Progress,
    on_metric: MetricSink,
) -> _Facts:
    """Say what the data came to, before the long work begins."""
    facts, train = _Facts(), parts["train"]
    facts.notes["Left out of training for length"] = "none"
    facts.recorded["options"] = {
        name: value for name, value in asdict(options).items() if name not in ("base", "init_from")
    }
    if replay is not None:
        n = len(replay.traces)
        facts.notes["Replay"] = replay.note(len(train.traces) - n)
        facts.recorded["replay"] = {"traces": n, "usable": replay.usable, "sha": data_sha(replay.traces)}
        on_metric("replay/traces", n, 0)
        progress(f"replay: {facts.notes['Replay']}", 0.0)
    if options.weights:
        facts.notes["Weights"] = train.weights_note()
        weights = {"effective_n": train.effective_n, "cut": train.cut, "limit": train.limit}
        facts.recorded["weights"] = weights
        for name, value in weights.items():
            on_metric(f"weights/{name}", value, 0)
        progress(f"weights: {facts.notes['Weights']}", 0.0)
    return facts


def _draw(traces: Sequence[Trace], replay: Sequence[Trace], options: TrainOptions) -> Replay:
    return draw_replay(traces, replay, share=options.replay_share, rows=options.replay_rows, seed=options.seed)


def _identity(parts: Mapping[Split, Part], options: TrainOptions) -> dict[str, Any]:
    """What decides the weights; the starting point's fingerprint is added where it is read."""
    deciding = {name: value for name, value in asdict(options).items() if name not in NOT_DECIDING}
    return deciding | {f"{split} data": data_sha(part.traces, in_order=True)[:16] for split, part in parts.items()}
