"""Makes a stacked run from a trained one: fits the layer of `stacked` where calibrations are fitted.

The model's logits on its own training rows look better than they are, so the layer is fitted on the split `calibration`
(it is Platt scaling with more inputs). Of the traces there are few, so the features enter mainly through the baseline,
which is fitted on `train` and has not seen these rows either:

    logit = a · model + b · baseline + Σ d_j · feature_j + c,   minimising  Σ w · log loss + λ/2 · Σ d_j²

With a large λ two numbers decide between model and baseline, with a small one every feature gets its own coefficient.
λ is chosen by log loss out of fold, folds by user question, and the calibration is fitted on these out-of-fold
probabilities: nothing of the stack is calibrated on rows it was fitted on. What is saved is one coefficient per input.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.baseline import FEATURES, BaselineModel, featurise
from observer_core.decision.calibration import Array, logit, sigmoid
from observer_core.decision.calibration_fit import Bools, folds_by_question, logistic
from observer_core.decision.finish import finish_run
from observer_core.decision.load import raw_scorer
from observer_core.decision.scorer import baseline_scorer, deciding
from observer_core.decision.stacked import StackedLayer
from observer_core.decision.training.data import data_sha, split_traces
from observer_core.decision.training.options import BASELINE
from observer_core.decision.training.progress import Progress, no_progress, part
from observer_core.errors import InputError
from observer_core.rundir import CHECKPOINT, STACKED_BASE, Manifest, RunDirectory, new_run, open_run
from observer_core.traces.trace import Trace

PENALTIES = (1e6, 100.0, 30.0, 10.0, 3.0, 1.0)
"""Candidates for λ, of equals the first: the stiffer layer."""
_CORE = 3  # model, baseline, intercept: (nearly) free of the penalty


def stack_run(
    base: RunDirectory, traces: Sequence[Trace], out: Path, *, weights: bool = False, progress: Progress | None = None
) -> RunDirectory:
    """Write a stacked run to `out`, evaluated beside its model and the baseline.

    Args:
        traces: labeled traces with the splits the model was trained on.
        weights: count each trace by 1 / (keep probability × review probability).

    Raises:
        InputError: `base` is a baseline or stacked already, `out` exists, or a split has too few traces of a class.
    """
    if base.manifest.family in ("baseline", "stacked"):
        raise InputError(f"{base.path} is a {base.manifest.family} run; stack a run of kev or laya")
    base.verify()
    progress = progress or no_progress
    parts = split_traces(traces, weights=weights)
    train, fitting = parts["train"], parts["calibration"]
    with new_run(out) as folder:
        shutil.copytree(base.path, folder / CHECKPOINT / STACKED_BASE)
        model = raw_scorer(base.path, deciding(base.manifest))
        progress("scoring the calibration split", 0.05)
        p_model = np.array([score.p_wrong_raw for score in model(fitting.traces)])
        baseline = BaselineModel.fit(train.traces, train.wrong, train.weight)
        inputs = _Inputs(baseline, p_model, fitting.traces)
        penalty, held_out = inputs.choose_penalty(fitting.wrong, fitting.weight)
        inputs.layer(fitting.wrong, fitting.weight, penalty).save(folder / CHECKPOINT)
        manifest = _manifest(base)
        manifest.train_data_sha = data_sha(train.traces)
        finish_run(
            folder,
            manifest,
            parts,
            {base.manifest.model: model, BASELINE: baseline_scorer(baseline)},
            out=out,
            notes={"Layer": f"fitted on {len(fitting.traces)} calibration traces, penalty {penalty:g} (out of fold)"},
            progress=part(progress, 0.1, 1.0),
            p_calibration=held_out,
        )
    progress("done", 1.0)
    return open_run(out)


def _manifest(base: RunDirectory) -> Manifest:
    of = base.manifest
    return Manifest(
        family="stacked",
        model=f"stacked-{of.model}",
        base=of.base,
        base_revision=of.base_revision,
        init_from=f"{base.path.name}@{base.version}",
        questions=of.questions,
        decision_question=of.decision_question,
        slice=of.slice_spec,
        onnx=of.onnx,
    )


class _Inputs:
    """The layer's inputs for some traces: columns model, baseline, 1, and the standardised features."""

    def __init__(self, baseline: BaselineModel, p_model: Array, traces: Sequence[Trace]) -> None:
        self._baseline, self._traces = baseline, traces
        mean, scale = (np.array([values[name] for name in FEATURES]) for values in (baseline.mean, baseline.scale))
        core = [logit(p_model), logit(baseline.p_wrong_raw(traces)), np.ones(len(traces))]
        self._columns = np.column_stack([*core, (featurise(traces) - mean) / scale])

    def choose_penalty(self, wrong: Bools, weight: Array) -> tuple[float, Array]:
        """The penalty with the lowest log loss out of fold, and those out-of-fold probabilities."""
        fold = folds_by_question(self._traces)
        best, probabilities, lowest = PENALTIES[0], np.empty(0), np.inf
        for penalty in PENALTIES:
            p = np.empty(len(wrong))
            for held_out in (fold == k for k in np.unique(fold)):
                beta = self._fit(~held_out, wrong, weight, penalty)
                p[held_out] = sigmoid(self._columns[held_out] @ beta)
            loss = float(-(weight * np.log(np.where(wrong, p, 1 - p))).sum() / weight.sum())
            if loss < lowest - 1e-9:
                best, probabilities, lowest = penalty, p, loss
        return best, probabilities

    def layer(self, wrong: Bools, weight: Array, penalty: float) -> StackedLayer:
        """The layer fitted on all rows."""
        model, b, c, *own = self._fit(np.ones(len(wrong), dtype=bool), wrong, weight, penalty).tolist()
        of = self._baseline
        through = {name: b * of.coefficient[name] + d for name, d in zip(FEATURES, own, strict=True)}
        return StackedLayer(model, of.mean, of.scale, through, intercept=b * of.intercept + c)

    def _fit(self, rows: NDArray[np.bool_], wrong: Bools, weight: Array, penalty: float) -> Array:
        strength = np.concatenate([np.full(_CORE, 1e-3), np.full(len(FEATURES), penalty)])
        return logistic(self._columns[rows], wrong[rows].astype(float), weight[rows], strength)
