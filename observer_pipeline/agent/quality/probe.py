"""The leakage probe: can a seeded fault be told from what a trace is made of rather than from what it says?

It sees ids, the names and order of attributes, timestamps and durations, and nothing that a person would read. How many
calls there were and how many failed may tell, as in life, so traces are compared with traces alike in both.
"""

import itertools
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from observer_pipeline.agent.quality.guessing import Guess, guess

FAMILIES = ("ids", "names", "order", "timestamps", "durations")
TOGETHER = "all together"
_BUCKETS = 96
_TOOL = "execute_tool"


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """A trace's spans, its user question and its seeded fault, None for a natural run."""

    spans: Sequence[ResourceSpans]
    question: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class Probed:
    """How well seeded runs are told from natural ones.

    Attributes:
        families: all seeded runs, by each family of features and by all together.
        kinds: the runs with each kind of fault, by all features together.
    """

    families: dict[str, Guess] = field(default_factory=dict)
    kinds: dict[str, Guess] = field(default_factory=dict)

    @property
    def told(self) -> list[str]:
        """What is told better than chance explains, one sentence each."""
        found = [
            f"Seeded runs can be told by their {n}: AUROC {g}." for n, g in self.families.items() if g.beats_chance
        ]
        return found + [
            f"Runs with the fault {n} can be told without reading: AUROC {g}."
            for n, g in self.kinds.items()
            if g.beats_chance
        ]


def probe(
    rows: Sequence[ProbeRow], told: Callable[[str], None] = lambda _: None, *, by: Collection[str] | None = None
) -> Probed:
    """Train on four fifths of the questions, tell seeded runs of the fifth from natural ones.

    A single kind of fault has few runs, so what counts as chance is wide for it; the more runs, the sharper.
    `told` is told what comes next; `by` names the families and kinds to look at, all of them by default.
    """
    if not rows:
        return Probed()
    kinds = np.array([row.fault or "" for row in rows])
    groups = [row.question for row in rows]
    alike = [_calls(row.spans) for row in rows]
    parts = {name: np.array([_FEATURES[name](row.spans) for row in rows], dtype=float) for name in FAMILIES}
    parts["timestamps"][:, 0] -= min(_first_start(row.spans) for row in rows) / 1e9
    everything = np.hstack(list(parts.values()))
    families = {}
    for name, features in [*parts.items(), (TOGETHER, everything)]:
        if by is not None and name not in by:
            continue
        told(f"telling seeded runs: by {name}")
        families[name] = guess(features, kinds != "", groups, equal=alike, trees=True)
    seeded = sorted(set(kinds) - {""})
    by_kind = {}
    for kind in seeded:
        if by is not None and kind not in by:
            continue
        told(f"telling seeded runs: {kind}")
        chosen = np.flatnonzero((kinds == kind) | (kinds == ""))
        by_kind[kind] = guess(
            everything[chosen],
            kinds[chosen] == kind,
            [groups[i] for i in chosen],
            equal=[alike[i] for i in chosen],
            trees=True,
            comparisons=len(seeded),
        )
    return Probed(families, by_kind)


def _calls(groups: Sequence[ResourceSpans]) -> tuple[int, int]:
    """How many tool calls, and how many of them failed."""
    tools = [span for span in _spans(groups) if span.name.startswith(_TOOL)]
    return len(tools), sum(span.status.code == Status.STATUS_CODE_ERROR for span in tools)


def _spans(groups: Sequence[ResourceSpans]) -> list[Span]:
    spans = [span for group in groups for scope in group.scope_spans for span in scope.spans]
    return sorted(spans, key=lambda span: span.start_time_unix_nano)


def _first_start(groups: Sequence[ResourceSpans]) -> int:
    return min((span.start_time_unix_nano for span in _spans(groups)), default=0)


def _kind(span: Span) -> str:
    """The kind of span: its name without what is in brackets or follows (`execute_tool search` → `execute_tool`)."""
    return re.split(r"[ \[(]", span.name, maxsplit=1)[0]


def _plain(key: str) -> str:
    """An attribute's name without the numbers in it, which count messages and calls."""
    return re.sub(r"\d+", "N", key)


def _ids(groups: Sequence[ResourceSpans]) -> list[float]:
    spans = _spans(groups)
    trace_id = spans[0].trace_id if spans else bytes(16)
    span_ids = np.array([list(span.span_id) for span in spans] or [[0] * 8], dtype=float)
    return [*map(float, trace_id), *span_ids[0], *span_ids.mean(axis=0)]


def _names(groups: Sequence[ResourceSpans]) -> list[float]:
    """Which attributes spans of a kind have; the share of such spans, by hashed name."""
    found = np.zeros(_BUCKETS)
    for kind, spans in _by_kind(groups).items():
        keys = [{_plain(attribute.key) for attribute in span.attributes} for span in spans]
        for key in set().union(*keys):
            found[_bucket(f"{kind}:{key}")] += sum(key in one for one in keys) / len(keys)
        for event in (event for span in spans for event in span.events):
            found[_bucket(f"{kind}:event:{event.name}")] += 1 / len(spans)
    for group in groups:
        for attribute in group.resource.attributes:
            found[_bucket(f"resource:{attribute.key}")] += 1 / len(groups)
    return list(found)


def _order(groups: Sequence[ResourceSpans]) -> list[float]:
    """Which attribute follows which; the share of spans of a kind, by hashed pair."""
    found = np.zeros(_BUCKETS)
    for kind, spans in _by_kind(groups).items():
        for span in spans:
            keys = list(dict.fromkeys(_plain(attribute.key) for attribute in span.attributes))
            for here, following in itertools.pairwise(keys):
                found[_bucket(f"{kind}:{here}>{following}")] += 1 / len(spans)
    return list(found)


def _timestamps(groups: Sequence[ResourceSpans]) -> list[float]:
    start = _first_start(groups)
    seconds, rest = divmod(start, 1_000_000_000)
    return [start / 1e9, seconds % 60, seconds // 60 % 60, seconds // 3600 % 24, rest, rest % 1_000_000, rest % 1000]


def _durations(groups: Sequence[ResourceSpans]) -> list[float]:
    """Mean, shortest and longest log duration of each kind of span, and the mean pause between beginnings."""
    features = []
    by_kind = _by_kind(groups)
    for kind in ("invocation", "agent_run", "call_llm", _TOOL):
        took = [np.log1p(max(0, s.end_time_unix_nano - s.start_time_unix_nano)) for s in by_kind.get(kind, [])]
        features += [np.mean(took), np.min(took), np.max(took)] if took else [0.0, 0.0, 0.0]
    starts = [span.start_time_unix_nano for span in _spans(groups)]
    pauses = np.diff(starts) if len(starts) > 1 else np.zeros(1)
    return [*map(float, features), float(np.log1p(pauses.mean())), float(np.log1p(pauses.max()))]


def _by_kind(groups: Sequence[ResourceSpans]) -> dict[str, list[Span]]:
    out: dict[str, list[Span]] = {}
    for span in _spans(groups):
        out.setdefault(_kind(span), []).append(span)
    return out


def _bucket(text: str) -> int:
    return zlib.crc32(text.encode()) % _BUCKETS


_FEATURES = {"ids": _ids, "names": _names, "order": _order, "timestamps": _timestamps, "durations": _durations}
