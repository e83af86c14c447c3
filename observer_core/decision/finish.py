"""The last steps every family shares: calibrate, evaluate beside its rivals, replayable golden scores, seal."""

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa

from observer_core.decision.calibration import Array, calibrate
from observer_core.decision.calibration_fit import fit_calibration
from observer_core.decision.golden import make_golden
from observer_core.decision.load import raw_scorer
from observer_core.decision.scorer import RawScorer, RunScorer, deciding
from observer_core.decision.training.data import Part
from observer_core.decision.training.options import BASELINE
from observer_core.decision.training.progress import Progress, part
from observer_core.environment import environment
from observer_core.metrics.estimate import Estimate
from observer_core.metrics.predictions import predict
from observer_core.metrics.report import write_evaluation
from observer_core.questions import DECISION_QUESTION, default_questions
from observer_core.rundir import Manifest, RunDirectory, seal
from observer_core.slices import StateBuilder
from observer_core.traces.trace import Split, Trace

TIMED_TRACES = 40
MAX_VALIDATION_SCORES = 1000
PACKAGES = ("observer-pipeline", "numpy", "onnxruntime", "tokenizers", "scikit-learn", "torch", "transformers", "peft")


def finish_run(
    folder: Path,
    manifest: Manifest,
    parts: Mapping[Split, Part],
    rivals: Mapping[str, RawScorer],
    *,
    out: Path,
    notes: Mapping[str, str],
    progress: Progress,
    p_calibration: Array | None = None,
) -> RunDirectory:
    """Turn a folder with trained weights into a run directory.

    Calibrates on the split `calibration`, evaluates once on `test`, beside each rival calibrated in the same way.

    Args:
        folder: the run's temporary folder, with `checkpoint/` and what else the family needs to be loaded.
        manifest: what the family says of itself; the rest is filled in here.
        rivals: name → raw scorer of what the report sets the run beside.
        out: where the folder will be.
        p_calibration: raw probabilities for the calibration split by a model that had not seen these rows; for a family
            that is fitted on that split.
    """
    raw = raw_scorer(folder, deciding(manifest))
    predictions = [_calibrate_and_predict(manifest, raw, parts, part(progress, 0.0, 0.6), p_calibration)]
    cut = _states_cut(folder, manifest, parts)
    notes = {**_sizes(parts), **notes, **_cut_note(cut)}
    for name, rival in rivals.items():
        beside = Manifest(model=name, questions=deciding(manifest).questions)
        predictions.append(_calibrate_and_predict(beside, rival, parts, part(progress, 0.6, 0.7)))
    progress("evaluating", 0.75)
    evaluated = write_evaluation(
        folder,
        pa.concat_tables(predictions),
        scorer=manifest.model,
        title=f"{manifest.model}, run {out.name}",
        notes=notes,
        further=cut,
        baseline=BASELINE if BASELINE in rivals else None,
        run=str(out),
    )
    manifest.metrics = {name: entry["value"] for name, entry in evaluated["all"].items()}
    manifest.heldout = {"n": len(parts["test"].traces), "base_rate": float(parts["test"].wrong.mean())}
    manifest.run_dir = out.name
    manifest.training = {**manifest.training, "notes": notes}
    manifest.versions = {package: version(package) for package in PACKAGES}
    served = raw_scorer(folder, manifest)
    manifest.golden = make_golden(lambda golden: [score.p_wrong_raw for score in served(golden)])
    manifest.golden_environment = environment()
    manifest.latency_ms = _latency(RunScorer(manifest, "", served), parts["test"].traces)
    return seal(folder, manifest)


def baseline_manifest() -> Manifest:
    """What the baseline says of itself: it answers the question that decides."""
    questions = {DECISION_QUESTION: default_questions()[DECISION_QUESTION]}
    return Manifest(family="baseline", model=BASELINE, questions=questions)


def _sizes(parts: Mapping[Split, Part]) -> dict[str, str]:
    return {"Labeled traces": ", ".join(f"{split} {len(part.traces)}" for split, part in parts.items())}


def _states_cut(folder: Path, manifest: Manifest, parts: Mapping[Split, Part]) -> dict[str, Estimate]:
    """`state_truncated_<split>`: the share of a split's traces whose state lost text. The baseline reads no state."""
    if manifest.family == BASELINE:
        return {}
    states = StateBuilder(manifest.slice_spec, RunDirectory(folder, manifest).tokenizer)
    shares: dict[str, Estimate] = {}
    for split, members in parts.items():
        lost = sum(states.build(trace).truncated for trace in members.traces)
        shares[f"state_truncated_{split}"] = Estimate(lost / len(members.traces), None, None, len(members.traces))
    return shares


def _cut_note(cut: Mapping[str, Estimate]) -> dict[str, str]:
    shares = [f"{name.removeprefix('state_truncated_')} {share.value:.1%}" for name, share in cut.items()]
    return {"States that lost text to the model's window": ", ".join(shares)} if shares else {}


def _calibrate_and_predict(
    manifest: Manifest,
    raw: RawScorer,
    parts: Mapping[Split, Part],
    progress: Progress,
    p_calibration: Array | None = None,
) -> pa.Table:
    """Fill in `calibration` and `validation_scores`, then score the test split."""

    def p_raw(split: Split) -> Array:
        progress(f"scoring the {split} split", 0.0 if split == "calibration" else 0.25)
        return np.array([score.p_wrong_raw for score in raw(parts[split].traces)])

    fitting = parts["calibration"]
    p = p_raw("calibration") if p_calibration is None else p_calibration
    manifest.calibration = fit_calibration(p, fitting.traces, fitting.wrong, fitting.weight)
    manifest.calibration.fitted_on = "calibration"
    scores = np.sort(calibrate(p_raw("validation"), manifest))
    kept = np.linspace(0, len(scores) - 1, min(len(scores), MAX_VALIDATION_SCORES)).round().astype(int)
    manifest.validation_scores = [round(float(score), 6) for score in scores[kept]]
    scorer = RunScorer(manifest, "", raw)
    return predict(manifest.model, scorer, parts["test"].traces, progress=part(progress, 0.5, 1.0))


def _latency(scorer: RunScorer, traces: Sequence[Trace]) -> dict[str, float]:
    """p50 and p95 of scoring one trace at a time, all questions asked, in milliseconds."""
    took = []
    scorer.score(traces[:1])  # the first call allocates
    for trace in traces[:TIMED_TRACES]:
        started = time.perf_counter()
        scorer.score([trace])
        took.append((time.perf_counter() - started) * 1000)
    return {"p50": round(float(np.percentile(took, 50)), 2), "p95": round(float(np.percentile(took, 95)), 2)}
