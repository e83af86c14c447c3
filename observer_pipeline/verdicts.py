"""From people's annotations to one verdict per trace, and which kept traces people are asked about."""

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from observer_core.traces.trace import Label, Trace

ANNOTATION = "correctness"
"""Name of the annotation people give in Phoenix."""
LABELS: tuple[str, ...] = get_args(Label)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What people say of a trace: the majority's label, who said it, and of how many who gave one."""

    label: Label
    annotators: tuple[str, ...]
    votes: int


@dataclass(frozen=True, slots=True)
class Merged:
    """Verdicts by trace id, and the ids left out: `ties` (no majority)."""

    verdicts: dict[str, Verdict]
    ties: list[str]


def merge_annotations(rows: Iterable[Mapping[str, Any]]) -> Merged:
    """One verdict per trace: each annotator's latest annotation counts, the most frequent label wins, ties are out.

    Rows are those of `tables.ANNOTATIONS`. Only `correctness` by humans with a known label counts; span and trace
    annotations of one annotator compete by time, since both speak of the same trace.
    """
    latest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        if row["name"] != ANNOTATION or row["annotator_kind"] != "HUMAN" or row["label"] not in LABELS:
            continue
        key = (row["trace_id"], row["annotator"])
        if key not in latest or (row["updated_at"], row["id"]) > (latest[key]["updated_at"], latest[key]["id"]):
            latest[key] = row
    votes: dict[str, dict[str, str]] = {}
    for (trace_id, annotator), row in latest.items():
        votes.setdefault(trace_id, {})[annotator] = row["label"]
    verdicts: dict[str, Verdict] = {}
    ties: list[str] = []
    for trace_id, by_annotator in votes.items():
        (label, count), *others = Counter(by_annotator.values()).most_common()
        if others and others[0][1] == count:
            ties.append(trace_id)
            continue
        agreeing = tuple(sorted(name for name, given in by_annotator.items() if given == label))
        verdicts[trace_id] = Verdict(label, agreeing, len(by_annotator))  # pyright: ignore[reportArgumentType]
    return Merged(verdicts, sorted(ties))


def label_traces(
    agent_traces: Sequence[Trace],
    gold: Mapping[str, Mapping[str, Any]],
    live_traces: Sequence[Trace],
    verdicts: Mapping[str, Verdict],
    *,
    keep_probability: Mapping[str, float],
    review_probability: Mapping[str, float],
) -> list[Trace]:
    """All labeled traces: the agent's by their gold labels, live ones by verdict; a verdict beats a gold label.

    Args:
        agent_traces: runs of the test agent.
        gold: trace id → `em`, `f1`, `label`.
        live_traces: kept traces.
        verdicts: trace id → verdict.
        keep_probability: of kept traces; weights undo the selection with it.
        review_probability: of traces drawn into the review queue.
    """
    out: dict[str, Trace] = {}
    for trace in agent_traces:
        key = str(trace.trace_id)
        if key in gold:
            row = gold[key]
            out[key] = replace(trace, label=row["label"], em=row["em"], f1=row["f1"], label_source="gold")
    known = {str(trace.trace_id): trace for trace in (*agent_traces, *live_traces)}
    for key, verdict in verdicts.items():
        if key not in known:
            continue
        out[key] = replace(
            known[key],
            label=verdict.label,
            label_source="annotation",
            annotator=", ".join(verdict.annotators),
            keep_probability=keep_probability.get(key),
            review_probability=review_probability.get(key),
        )
    return list(out.values())


@dataclass(frozen=True, slots=True)
class Drawn:
    """A trace drawn for review, the probability it was drawn with, and whether the reviewer must not see its score."""

    trace_id: str
    review_probability: float
    score_hidden: bool


def draw_review(candidates: Sequence[str], *, size: int, hidden_share: float, key: bytes) -> list[Drawn]:
    """Draw about `size` of the candidates at random, each with the same, recorded probability.

    A person who opens the highest scores first gives labels from which no error rate can be estimated; these can.
    The draw is by a keyed hash of the trace id, so the same call draws the same traces.
    """
    if not candidates:
        return []
    probability = min(1.0, size / len(candidates))
    return [
        Drawn(trace_id, probability, _uniform(key + b"hide", trace_id) < hidden_share)
        for trace_id in candidates
        if _uniform(key + b"draw", trace_id) < probability
    ]


def _uniform(key: bytes, trace_id: str) -> float:
    digest = hmac.new(key, trace_id.encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
