"""What scorers said of labeled traces: one row per trace and scorer. All metrics are computed from this table."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from observer_core.decision.protocol import Scorer
from observer_core.errors import InputError, ObserverError
from observer_core.files import whole_file
from observer_core.traces.splits import normalise_question, split_of
from observer_core.traces.trace import Trace

PREDICTION_SCHEMA = pa.schema(
    [
        ("scorer", pa.string()),
        ("trace_id", pa.string()),
        ("qid", pa.string()),
        ("group", pa.string()),  # digest of the normalised user question: rows of one group are dependent
        ("split", pa.string()),
        ("label", pa.string()),
        ("failure_type", pa.string()),
        ("model", pa.string()),
        ("weight", pa.float64()),
        ("p_wrong_raw", pa.float64()),
        ("p_wrong", pa.float64()),
    ]
)
Slice = Literal["all", "natural", "seeded"]
SLICES: tuple[Slice, ...] = ("all", "natural", "seeded")
_BATCH = 64


def group_of(question: str) -> str:
    """The group of a user question: 16 hex digits of the sha256 of its normalised text."""
    return hashlib.sha256(normalise_question(question).encode()).hexdigest()[:16]


def predict(
    name: str, scorer: Scorer, traces: Sequence[Trace], *, progress: Callable[[str, float], None] | None = None
) -> pa.Table:
    """Score `traces` and lay the scores beside what is known of each trace.

    Args:
        name: what the column `scorer` says.
        progress: called with what is being done and the fraction done.

    Raises:
        ObserverError: the scorer gave something that is no probability; names the trace.
    """
    rows = []
    for start in range(0, len(traces), _BATCH):
        batch = traces[start : start + _BATCH]
        for i, (trace, score) in enumerate(zip(batch, scorer.score(batch), strict=True), start):
            trace_id = trace.trace_id or f"row:{i}"
            for p in (score.p_wrong_raw, score.p_wrong):
                if not (math.isfinite(p) and 0 <= p <= 1):
                    raise ObserverError(f"{name} scored trace {trace_id} with {p}, no probability; check its weights")
            rows.append(
                {
                    "scorer": name,
                    "trace_id": trace_id,
                    "qid": trace.qid,
                    "group": group_of(trace.question),
                    "split": split_of(trace),
                    "label": trace.label,
                    "failure_type": trace.failure_type,
                    "model": trace.model,
                    "weight": trace.weight,
                    "p_wrong_raw": float(score.p_wrong_raw),
                    "p_wrong": float(score.p_wrong),
                }
            )
        if progress:
            progress(f"scoring with {name}", (start + len(batch)) / len(traces))
    return pa.Table.from_pylist(rows, schema=PREDICTION_SCHEMA)


def write_predictions(path: Path, predictions: pa.Table) -> None:
    """Write the table as Parquet, whole or not at all."""
    with whole_file(path) as aside:
        pq.write_table(predictions, aside, compression="zstd")


def read_predictions(path: Path) -> pa.Table:
    """Read a table written by `write_predictions`.

    Raises:
        InputError: no such file, or it lacks a column.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"cannot read predictions from {path}: {error}; evaluate the run again") from error
    missing = [name for name in PREDICTION_SCHEMA.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path} lacks the column {missing[0]}; evaluate the run again")
    return table.select(PREDICTION_SCHEMA.names)


def scorers_of(predictions: pa.Table) -> list[str]:
    """The scorers in the table, in the order they first appear."""
    return list(dict.fromkeys(predictions["scorer"].to_pylist()))


@dataclass(frozen=True, slots=True)
class Sample:
    """The labeled rows of one scorer as arrays; `group` and `agent` are codes 0 … `groups`-1 and 0 … agents-1."""

    keys: tuple[str, ...]
    wrong: np.ndarray
    partial: np.ndarray
    seeded: np.ndarray
    p: np.ndarray
    weight: np.ndarray
    group: np.ndarray
    groups: int
    agent: np.ndarray

    @property
    def n(self) -> int:
        return len(self.p)

    @property
    def problem(self) -> str | None:
        """Why ranking and recall have no meaning here, or `None`."""
        if self.n == 0:
            return "there are no such traces"
        if self.wrong.all():
            return "all of these traces are wrong"
        if not self.wrong.any():
            return "none of these traces is wrong"
        return None

    def take(self, rows: np.ndarray) -> "Sample":
        """The rows given by a mask or by positions, groups and agents numbered anew."""
        groups, group = np.unique(self.group[rows], return_inverse=True)
        _, agent = np.unique(self.agent[rows], return_inverse=True)
        return Sample(
            keys=tuple(np.array(self.keys, dtype=object)[rows]),
            wrong=self.wrong[rows],
            partial=self.partial[rows],
            seeded=self.seeded[rows],
            p=self.p[rows],
            weight=self.weight[rows],
            group=group,
            groups=len(groups),
            agent=agent,
        )

    def slice(self, name: Slice, *, partial: bool = True) -> "Sample":
        """`natural` or `seeded` rows, or all; without `partial` labels if not `partial`."""
        rows = np.ones(self.n, dtype=bool)
        if name != "all":
            rows = self.seeded if name == "seeded" else ~self.seeded
        return self.take(rows if partial else rows & ~self.partial)


def sample_of(predictions: pa.Table, scorer: str, *, split: str | None = None) -> Sample:
    """The labeled rows of a scorer, only those of `split` if given.

    Raises:
        InputError: the table has no such scorer; names those it has.
    """
    known = scorers_of(predictions)
    if scorer not in known:
        raise InputError(f"no predictions of {scorer!r}; these are from {', '.join(known) or 'nobody'}")
    rows = (pc.field("scorer") == scorer) & pc.field("label").is_valid()
    table = predictions.filter(rows if split is None else rows & (pc.field("split") == split))
    label = np.array(table["label"].to_pylist(), dtype=object)
    groups, group = np.unique(np.array(table["group"].to_pylist(), dtype=object), return_inverse=True)
    _, agent = np.unique(np.array([m or "" for m in table["model"].to_pylist()], dtype=object), return_inverse=True)
    return Sample(
        keys=_keys(table["trace_id"].to_pylist()),
        wrong=label != "correct",
        partial=label == "partial",
        seeded=np.array([fault is not None for fault in table["failure_type"].to_pylist()], dtype=bool),
        p=table["p_wrong"].to_numpy(),
        weight=table["weight"].to_numpy(),
        group=group,
        groups=len(groups),
        agent=agent,
    )


def _keys(trace_ids: list[str]) -> tuple[str, ...]:
    """A key per row: the trace id, with a number from the second time it occurs."""
    seen: dict[str, int] = {}
    keys = []
    for trace_id in trace_ids:
        seen[trace_id] = seen.get(trace_id, 0) + 1
        keys.append(trace_id if seen[trace_id] == 1 else f"{trace_id}#{seen[trace_id]}")
    return tuple(keys)


def pair(a: Sample, b: Sample) -> tuple[Sample, Sample]:
    """The traces that both scorers scored, in the same order and with the same group numbers."""
    place = {key: i for i, key in enumerate(b.keys)}
    rows = [(i, place[key]) for i, key in enumerate(a.keys) if key in place]
    left = np.array([i for i, _ in rows], dtype=int)
    right = np.array([j for _, j in rows], dtype=int)
    return a.take(left), b.take(right)
