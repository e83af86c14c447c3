"""Annotations from Phoenix as rows of the warehouse, and which kept traces still wait for one."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from observer_pipeline.resources.phoenix import PhoenixResource, Target
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import ANNOTATIONS

ANONYMOUS = "anonymous"
"""Who annotates in a Phoenix without authentication: everybody is the same person there."""


def annotation_row(row: Mapping[str, Any], target: Target, trace_of: Mapping[str, str]) -> dict[str, Any]:
    """A row of Phoenix as a row of `ANNOTATIONS`; `trace_of` gives a span's trace."""
    result = row.get("result") or {}
    return {
        "id": row["id"],
        "target": target,
        "trace_id": row["trace_id"] if target == "trace" else trace_of[row["span_id"]],
        "name": row["name"],
        "label": result.get("label"),
        "annotator_kind": row["annotator_kind"],
        "annotator": row.get("user_id") or row.get("identifier") or ANONYMOUS,
        "source": row.get("source"),
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def pull(phoenix: PhoenixResource, *, since: datetime | None = None) -> pa.Table:
    """All annotations `correctness` on the project's root spans and their traces, for traces started `since` then."""
    trace_of = {span["context"]["span_id"]: span["context"]["trace_id"] for span in phoenix.root_spans(since=since)}
    rows = [annotation_row(row, "span", trace_of) for row in phoenix.annotations("span", list(trace_of))]
    traces = sorted(set(trace_of.values()))
    rows += [annotation_row(row, "trace", trace_of) for row in phoenix.annotations("trace", traces)]
    return pa.Table.from_pylist(rows, schema=ANNOTATIONS)


def newest(before: pa.Table, pulled: pa.Table) -> pa.Table:
    """Both tables as one with the newest version of each annotation."""
    by_id: dict[tuple[str, str], dict[str, Any]] = {}
    for row in [*before.to_pylist(), *pulled.to_pylist()]:
        key = (row["target"], row["id"])
        if key not in by_id or row["updated_at"] >= by_id[key]["updated_at"]:
            by_id[key] = row
    return pa.Table.from_pylist(list(by_id.values()), schema=ANNOTATIONS)


def unreviewed(warehouse: Warehouse) -> list[dict[str, Any]]:
    """Kept live traces nobody judged and no earlier draw took: `trace_id`, `p_wrong`, in the order of their ids."""
    if not warehouse.parts("live_decisions"):
        return []
    seen = [
        f"SELECT trace_id FROM {table}" for table in ("phoenix_annotations", "review_queue") if warehouse.parts(table)
    ]
    without = f"AND trace_id NOT IN ({' UNION '.join(seen)})" if seen else ""
    return warehouse.query(
        f"SELECT trace_id, any_value(p_wrong) AS p_wrong FROM live_decisions WHERE decision = 'keep' {without} "
        "GROUP BY trace_id ORDER BY trace_id"
    ).to_pylist()


def column_by_trace(table: pa.Table, column: str) -> dict[str, Any]:
    """Trace id → value of one column."""
    return dict(zip(table["trace_id"].to_pylist(), table[column].to_pylist(), strict=True))
