"""From labeled traces to a run directory: train, calibrate, export, evaluate beside the baseline, seal."""

from collections.abc import Sequence
from pathlib import Path

from observer_core.decision.baseline import BaselineModel
from observer_core.decision.finish import baseline_manifest, finish_run
from observer_core.decision.scorer import baseline_scorer
from observer_core.decision.training.data import data_sha, split_traces
from observer_core.decision.training.options import BASELINE, TrainOptions
from observer_core.decision.training.progress import MetricSink, Progress, no_metric, no_progress, part
from observer_core.rundir import CHECKPOINT, RunDirectory, new_run, open_run
from observer_core.traces.trace import Trace

__all__ = ["TrainOptions", "train_run"]


def train_run(
    traces: Sequence[Trace],
    out: Path,
    options: TrainOptions,
    *,
    progress: Progress | None = None,
    on_metric: MetricSink | None = None,
) -> RunDirectory:
    """Train and write a whole run directory to `out`, or nothing.

    Trains on the split `train`, stops early on `validation`, calibrates on `calibration`, and evaluates once on `test`,
    beside the baseline fitted on the same rows. Traces without a label are left out.

    Raises:
        InputError: `out` exists, a split has too few traces of a class, or the starting point cannot be used.
        ObserverError: the training diverged.
    """
    progress, on_metric = progress or no_progress, on_metric or no_metric
    parts = split_traces(traces, weights=options.weights)
    with new_run(out) as folder:
        train = parts["train"]
        baseline = BaselineModel.fit(train.traces, train.wrong, train.weight)
        if options.family == BASELINE:
            (folder / CHECKPOINT).mkdir()
            baseline.save(folder / CHECKPOINT)
            manifest = baseline_manifest()
        else:
            from observer_core.decision.laya.run import write_laya

            manifest = write_laya(folder, parts, options, progress=part(progress, 0.0, 0.85), on_metric=on_metric)
        manifest.train_data_sha = data_sha(train.traces)
        finish_run(
            folder,
            manifest,
            parts,
            {} if options.family == BASELINE else {BASELINE: baseline_scorer(baseline)},
            out=out,
            notes={"Left out of training for length": "none"},
            progress=part(progress, 0.85, 1.0),
        )
    progress("done", 1.0)
    return open_run(out)
