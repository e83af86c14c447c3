"""Sealed spool files as a service writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from observer_core.decisions import Decision, decision_row
from observer_core.traces.trace import Trace
from observer_pipeline.spool import KINDS


def decision(
    trace_id: str, *, keep: bool = True, keep_probability: float = 1.0, p_wrong: float = 0.9
) -> dict[str, Any]:
    """The row of one decision."""
    said = "keep" if keep else "drop"
    return decision_row(
        Decision(
            trace_id=trace_id,
            decision=said,
            reason="score" if keep_probability == 1 else ("random_share" if keep else "below_threshold"),
            p_wrong=p_wrong,
            p_wrong_raw=p_wrong,
            threshold=0.5,
            keep_probability=keep_probability,
            severity="high" if keep else "none",
            model="laya-mini",
            model_version="1",
            policy_version="p",
            project="observer",
            mode="enforce",
            would_decide=said,
            complete_reason="root_ended",
            spans=3,
            received_at="2026-01-01T00:00:00Z",
            decided_at="2026-01-01T00:00:01Z",
            latency_ms=5.0,
        )
    )


def decision_rows(n: int) -> list[dict[str, Any]]:
    return [decision(f"{i:032x}") for i in range(n)]


def trace_row(trace: Trace) -> dict[str, Any]:
    """The row of one kept trace."""
    import json

    return {
        "trace_id": trace.trace_id,
        "root_span_id": str(trace.trace_id)[-16:],
        "project": "observer",
        "decided_at": "2026-01-01T00:00:01Z",
        "trace": json.dumps(trace.to_json()),
    }


def seal(spool: Path, kind: str, name: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Write one sealed file."""
    file = spool / kind / f"{name}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=KINDS[kind][1]), file)
    return file
