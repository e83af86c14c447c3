"""Scores for traces that a Phoenix project had before the service stood in front of it, or had under an older model."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from observer_core.decision.protocol import Score, Scorer
from observer_core.errors import InputError, ObserverError
from observer_core.traces.trace import Trace
from observer_pipeline.phoenix_traces import open_project, read_project
from observer_serving.config import RedactSettings
from observer_serving.export.phoenix import ANNOTATION_NAME
from observer_serving.metrics import Metrics
from observer_serving.redact import Redactor, make_redactor
from observer_serving.score import LoadedModel
from observer_serving.score.lane import checked

log = logging.getLogger(__name__)

LABEL = "backfill"
"""The annotation's label, which for live traces is the reason of the decision: here nothing was decided."""
_BATCH = 16

Scored = tuple[Score, Scorer]


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Traces read, annotated, and without a score; `identifier` is the annotations'."""

    traces: int
    annotated: int
    failed: int
    identifier: str


def backfill(
    source: str, model: LoadedModel, redact: RedactSettings, *, progress: Callable[[str, float], None]
) -> Backfilled:
    """Score every trace of a project and write the trace annotation `observer.p_wrong`, kind CODE.

    The identifier names the model's version: the same model again updates its annotations, another one adds its own.

    Raises:
        InputError: no such project.
        ObserverError: Phoenix, or a scorer elsewhere, does not answer; what was written stays.
    """
    phoenix = open_project(source)
    redactor = make_redactor(redact, Metrics())
    traces = [trace for trace in read_project(source) if trace.trace_id]
    annotated = 0
    identifiers: list[str] = []
    for first in range(0, len(traces), _BATCH):
        batch = traces[first : first + _BATCH]
        scored = score_all(model, [_redacted(trace, redactor) for trace in batch])
        rows = [
            annotation(trace.trace_id or "", *one) for trace, one in zip(batch, scored, strict=True) if one is not None
        ]
        if rows:
            phoenix.annotate_traces(rows)
        annotated += len(rows)
        identifiers = list(dict.fromkeys([*identifiers, *(row["identifier"] for row in rows)]))
        progress("scoring", (first + len(batch)) / len(traces))
    return Backfilled(len(traces), annotated, len(traces) - annotated, ", ".join(identifiers))


def annotation(trace_id: str, score: Score, scorer: Scorer) -> dict[str, Any]:
    """One trace annotation in Phoenix's form."""
    return {
        "trace_id": trace_id,
        "name": ANNOTATION_NAME,
        "annotator_kind": "CODE",
        "result": {"score": score.p_wrong, "label": LABEL},
        "metadata": {"model": scorer.model, "state_truncated": score.state_truncated},
        "identifier": f"observer:{scorer.model_version}",
    }


def score_all(model: LoadedModel, traces: Sequence[Trace]) -> list[Scored | None]:
    """A score and who gave it per trace; of a cascade, the second model's for what the first one is uncertain of."""
    scored = _scores(model.first.scorer, traces)
    if model.second is None:
        return scored
    bounds = model.uncertain
    unsure = [i for i, one in enumerate(scored) if one is None or bounds.min <= one[0].p_wrong <= bounds.max]
    for i, better in zip(unsure, _scores(model.second.scorer, [traces[i] for i in unsure]), strict=True):
        scored[i] = better or scored[i]
    return scored


def _scores(scorer: Scorer, traces: Sequence[Trace]) -> list[Scored | None]:
    """Scores of a batch; a trace that the model cannot read gets none and does not take its neighbours' scores."""
    try:
        return [(score, scorer) for score in checked(scorer.score(traces), len(traces))]
    except Exception as error:
        if isinstance(error, ObserverError) and not isinstance(error, InputError):
            raise
        if len(traces) > 1:
            return [one for trace in traces for one in _scores(scorer, [trace])]
        log.warning("no score for trace %s: %s", traces[0].trace_id, error)
        return [None]


def _redacted(trace: Trace, redactor: Redactor | None) -> Trace:
    if redactor is None:
        return trace
    return Trace.from_json(json.loads(redactor.trace(json.dumps(trace.to_json()).encode())))
