"""Models that were not trained on our traces, as scorers: released checkpoints; and a calibration for any such scorer.

A model asked for the first time ranks a little and is off in level. To be compared fairly it is calibrated like every
trained run, on the calibration split; its raw probabilities stay beside.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from observer_core.decision.calibration_fit import fit_calibration
from observer_core.decision.protocol import DecisionModel
from observer_core.decision.scorer import RunScorer, deciding, state_scorer
from observer_core.decision.training.data import MAX_WEIGHT, MIN_PER_CLASS
from observer_core.errors import InputError
from observer_core.questions import default_questions
from observer_core.rundir import Family, Manifest
from observer_core.traces.splits import split_of
from observer_core.traces.trace import Trace

V1_SPEC = {"format": "v1", "cut": "before_final_answer"}
"""How a released model reads a trace: it was trained on no format of ours, and this one needs no tokenizer."""


def released_scorer(name: str) -> RunScorer:
    """A released checkpoint in Kev's or Laya's layout, asked the question that decides; uncalibrated.

    Args:
        name: a preset (`kev-0.8b`, `laya`, …), a checkpoint's folder, or a hub id (`owner/name@revision`), which is
            downloaded on first use.

    Raises:
        InputError: it is none of these, cannot be fetched, or is not usable.
    """
    family, model = _open(name)
    manifest = Manifest(family=family, model=name, questions=default_questions(), slice=V1_SPEC)
    asked = deciding(manifest)
    return RunScorer(asked, name, state_scorer(model, asked))


def calibrated(scorer: RunScorer, traces: Sequence[Trace], *, weights: bool = False) -> tuple[RunScorer, str]:
    """The scorer with a calibration fitted on the calibration split of labeled traces, and a sentence that says so.

    With fewer than 5 traces of a class there it stays as it is.

    Args:
        weights: count each trace by 1 / (keep probability × review probability).
    """
    fitting = [trace for trace in traces if trace.label is not None and split_of(trace) == "calibration"]
    wrong = np.array([trace.is_wrong for trace in fitting], dtype=np.bool_)
    needed = MIN_PER_CLASS["calibration"]
    if min(int(wrong.sum()), int((~wrong).sum())) < needed:
        return scorer, f"uncalibrated, since the calibration split has fewer than {needed} traces of a class"
    weight = np.array([trace.weight if weights else 1.0 for trace in fitting])
    p = np.array([score.p_wrong_raw for score in scorer.raw(fitting)])
    calibration = fit_calibration(p, fitting, wrong, np.minimum(weight / weight.mean(), MAX_WEIGHT))
    calibration.fitted_on = "calibration"
    manifest = scorer.manifest.model_copy(update={"calibration": calibration})
    said = f"calibrated ({calibration.method}) on {len(fitting)} traces of the calibration split"
    return RunScorer(manifest, scorer.model_version, scorer.raw), said


def _open(name: str) -> tuple[Family, DecisionModel]:
    from observer_core.decision.kev import presets as kev
    from observer_core.decision.kev.config import HEAD_FILE
    from observer_core.decision.laya import presets as laya
    from observer_core.decision.laya.config import CONFIG_FILE
    from observer_core.decision.laya.runtime import LayaModel

    folder = Path(name)
    if name in laya.RELEASED or (folder / CONFIG_FILE).is_file():
        return "laya", LayaModel.open(laya.find_preset(name).folder, cut="before_final_answer")
    if name in kev.RELEASED or (folder / HEAD_FILE).is_file():
        return "kev", _open_kev(kev.find_checkpoint(name))
    if folder.is_dir():
        raise InputError(f"{folder} holds neither {CONFIG_FILE} (Laya) nor {HEAD_FILE} (Kev); name a checkpoint")
    fetched = kev.find_checkpoint(name)
    if (fetched / CONFIG_FILE).is_file():
        return "laya", LayaModel.open(fetched, cut="before_final_answer")
    return "kev", _open_kev(fetched)


def _open_kev(checkpoint: Path) -> DecisionModel:
    from observer_core.decision.kev.runtime import KevModel

    return KevModel.open(checkpoint, cut="before_final_answer")
