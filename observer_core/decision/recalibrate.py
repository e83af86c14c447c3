"""Refits a run's bias to live traffic from verdicts on traces that were chosen at random.

The share of wrong answers differs everywhere, and with it what a score means. If only that share changes, not what
wrong and correct traces look like, Bayes' rule moves every logit by one number, the difference of the log odds of being
wrong (M. Saerens, P. Latinne, C. Decaestecker: Adjusting the outputs of a classifier to new a priori probabilities,
Neural Computation 14, 2002): logit p_live = logit p + δ. So δ alone is refitted, by maximum likelihood on live
verdicts, which makes the mean score of live traffic equal to its share of wrong answers; slope, shape and ranking stay.

Kept traces are chosen by their score, and people open the suspicious ones first: a plain share of wrong verdicts says
44 % where 10 % is true. A verdict therefore counts only when both probabilities that led to it were recorded, and
counts for 1 / (keep × review probability) traces.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from observer_core.decision.calibration import Array, calibrate, logit, sigmoid
from observer_core.decision.calibration_fit import effective_n, sample_of_rows
from observer_core.decision.load import raw_scorer
from observer_core.decision.scorer import deciding
from observer_core.errors import InputError
from observer_core.metrics import probability
from observer_core.metrics.estimate import Estimate
from observer_core.metrics.evaluate import evaluate
from observer_core.metrics.predictions import read_predictions, scorers_of
from observer_core.metrics.report import write_evaluation
from observer_core.rundir import MANIFEST, PREDICTIONS, Calibration, Manifest, RunDirectory, new_run, open_run, seal
from observer_core.traces.splits import split_of
from observer_core.traces.trace import Trace

MIN_PER_CLASS = 5
MIN_EFFECTIVE = 20
"""Verdicts a refit needs: of each class, and effectively (Kish) in all. With fewer δ is an accident."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts that count, and how many do not: `unrecorded` (a probability is unknown), `seen` (their user
    question belongs to a split the run was trained or evaluated on)."""

    traces: list[Trace]
    unrecorded: int
    seen: int


@dataclass(frozen=True, slots=True)
class BiasRefit:
    """What was added to the logits (`shift`, its interval clustered by user question), and what that does.

    `before` and `after` are the mean scores of live traffic, weighted like the verdicts; `after` is its share wrong.
    """

    shift: Estimate
    n_effective: float
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"every logit {self.shift.value:+.2f} ({self.shift.lo:+.2f} to {self.shift.hi:+.2f}) from {self.shift.n} "
            f"verdicts (effectively {self.n_effective:.0f}), mean score {self.before:.3f} → {self.after:.3f}"
        )


def usable_verdicts(traces: Sequence[Trace], *, all_questions: bool = False) -> Verdicts:
    """The traces a bias may be refitted on.

    Args:
        all_questions: also those of user questions in the splits `train` and `test`; right for a run that never saw
            these verdicts, neither in training nor in its evaluation.
    """
    labeled = [trace for trace in traces if trace.label is not None]
    known = [t for t in labeled if t.keep_probability is not None and t.review_probability is not None]
    unseen = [t for t in known if all_questions or split_of(t) in ("validation", "calibration")]
    return Verdicts(unseen, len(labeled) - len(known), len(known) - len(unseen))


def estimate_shift(p_wrong: Array, traces: Sequence[Trace]) -> BiasRefit:
    """δ for scores that are calibrated already.

    Args:
        p_wrong: calibrated probabilities of `traces`, shape (n,).

    Raises:
        InputError: too few verdicts.
    """
    wrong = np.array([trace.is_wrong for trace in traces], dtype=bool)
    weight = np.array([trace.weight for trace in traces], dtype=np.float64)
    effective = effective_n(weight) if len(traces) else 0.0
    if min(wrong.sum(), (~wrong).sum()) < MIN_PER_CLASS or effective < MIN_EFFECTIVE:
        raise InputError(
            f"{int(wrong.sum())} wrong and {int((~wrong).sum())} correct verdicts (effectively {effective:.0f}) are "
            f"too few to refit a bias; {MIN_PER_CLASS} of each and effectively {MIN_EFFECTIVE} are needed: review more"
        )
    sample = sample_of_rows(p_wrong, traces, wrong, weight)
    shift = probability.calibration_fit(sample)[0]
    assert shift.value is not None, "both classes are there"
    share = weight / weight.sum()
    after = sigmoid(logit(p_wrong) + shift.value)
    return BiasRefit(shift, effective, float(share @ p_wrong), float(share @ after))


def shifted(manifest: Manifest, refit: BiasRefit) -> Calibration:
    """The manifest's calibration with δ added on the logit scale; a temperature becomes the Platt scaling it is."""
    delta = refit.shift.value or 0.0
    of = manifest.calibration
    if of is None:
        temperature = manifest.temperatures.get(manifest.decision_question, 1.0)
        of = Calibration(method="temperature", parameters={"temperature": temperature})
    parameters = dict(of.parameters)
    method = of.method
    if method in ("none", "temperature"):
        method, parameters["slope"] = "platt", 1 / parameters.pop("temperature", 1.0)
    parameters["bias"] = parameters.get("bias", 0.0) + delta
    parameters["bias_refit"] = {
        "shift": refit.shift.to_json(),
        "n_effective": round(refit.n_effective, 1),
        "mean_before": refit.before,
        "mean_after": refit.after,
    }
    return Calibration(
        method=method, parameters=parameters, fitted_on=f"{of.fitted_on or 'unknown'}; bias: live verdicts"
    )


def refit_bias(
    run: RunDirectory, traces: Sequence[Trace], out: Path, *, all_questions: bool = False
) -> tuple[RunDirectory, BiasRefit, Verdicts]:
    """Write a copy of `run` to `out` whose bias fits live traffic; a run directory itself never changes.

    Weights and graphs are the same files. Predictions, metrics and report are made anew: they say what this run says of
    the same test traces, whose share of wrong answers is not that of live traffic.

    Args:
        traces: live traces with verdicts (see `usable_verdicts`, also for `all_questions`).

    Raises:
        InputError: `out` exists, the run cannot be loaded, or there are too few verdicts that count.
    """
    verdicts = usable_verdicts(traces, all_questions=all_questions)
    if not verdicts.traces:
        raise InputError(
            f"none of the {len(traces)} traces is a verdict that counts: {verdicts.unrecorded} without a recorded keep "
            f"and review probability, {verdicts.seen} of questions the run may have seen (see --all-questions)"
        )
    run.verify()
    raw = raw_scorer(run.path, deciding(run.manifest))(verdicts.traces)
    p = calibrate(np.array([score.p_wrong_raw for score in raw]), run.manifest)
    refit = estimate_shift(p, verdicts.traces)
    with new_run(out) as folder:
        shutil.copytree(run.path, folder, dirs_exist_ok=True, ignore=lambda _, names: {MANIFEST} & set(names))
        manifest = run.manifest.model_copy(
            update={
                "calibration": shifted(run.manifest, refit),
                "temperatures": {},
                "validation_scores": _moved(run.manifest.validation_scores, refit),
                "init_from": f"{run.path.name}@{run.version}",
                "run_dir": out.name,
                "created_at": None,
            }
        )
        _evaluate_again(folder, run, manifest, refit, out)
        seal(folder, manifest)
    return open_run(out), refit, verdicts


def _moved(scores: Sequence[float], refit: BiasRefit) -> list[float]:
    return [round(float(p), 6) for p in sigmoid(logit(np.array(scores)) + (refit.shift.value or 0.0))]


def _evaluate_again(folder: Path, run: RunDirectory, manifest: Manifest, refit: BiasRefit, out: Path) -> None:
    if not (folder / PREDICTIONS).is_file():  # a run of the seed system has none
        return
    predictions = read_predictions(folder / PREDICTIONS)
    own = np.array([name == manifest.model for name in predictions["scorer"].to_pylist()])
    p = np.where(own, calibrate(predictions["p_wrong_raw"].to_numpy(), manifest), predictions["p_wrong"].to_numpy())
    place = predictions.column_names.index("p_wrong")
    predictions = predictions.set_column(place, predictions.schema.field(place), [p])
    computed = evaluate(predictions, manifest.model)["all"]
    states = {name: Estimate.from_json(body) for name, body in run.metrics()["all"].items() if name not in computed}
    evaluated = write_evaluation(
        folder,
        predictions,
        scorer=manifest.model,
        title=f"{manifest.model}, run {out.name}",
        notes={"Bias": f"refitted to live traffic: {refit}; these test traces have another share of wrong answers"},
        further=states,
        baseline="baseline" if "baseline" in scorers_of(predictions) else None,
        run=str(out),
    )
    manifest.metrics = {name: entry["value"] for name, entry in evaluated["all"].items()}
