"""The labeled data set a model is trained on and compared on."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa

from observer_core.traces.trace import Split, Trace
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import TRACES, traces_of

SPLITS: tuple[Split, ...] = ("train", "validation", "calibration", "test")

DATASET_SPLITS = pa.schema([TRACES.field(name) for name in ("trace_id", "group", "split", "label", "weight")])


def split_rows(labeled: pa.Table) -> pa.Table:
    """`dataset_splits` from `labeled_traces`: which split each trace is in, by its user question."""
    return labeled.select(DATASET_SPLITS.names)


def dataset_sha(splits: pa.Table) -> str:
    """A fingerprint of who is in which split with which label and weight, whatever the order of rows."""
    rows = sorted(json.dumps(row, sort_keys=True) for row in splits.to_pylist())
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def load_dataset(warehouse: Warehouse) -> tuple[list[Trace], str]:
    """All labeled traces with their split, and the data set's fingerprint.

    Raises:
        InputError: `dataset_splits` or `labeled_traces` was never written.
    """
    splits = warehouse.read("dataset_splits")
    split_of = dict(zip(splits["trace_id"].to_pylist(), splits["split"].to_pylist(), strict=True))
    traces = [t for t in traces_of(warehouse.read("labeled_traces")) if t.trace_id in split_of]
    return [replace(t, split=cast(Split, split_of[t.trace_id])) for t in traces], dataset_sha(splits)


def in_split(traces: Sequence[Trace], split: Split) -> list[Trace]:
    """The traces of one split."""
    return [trace for trace in traces if trace.split == split]
