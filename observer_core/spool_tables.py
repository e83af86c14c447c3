"""The tables of the spool (Parquet), one row per decision, later outcome or kept trace.

Apart from the record itself (`observer_core.decisions`), since a service decides from its first second on but writes
Parquet only later: pyarrow takes long to import.
"""

from dataclasses import fields

import pyarrow as pa

from observer_core.decisions import Decision

_FLOATS = {"p_wrong", "p_wrong_raw", "threshold", "keep_probability", "latency_ms"}
_INTS = {"spans", "late_spans"}
_BOOLS = {"state_truncated", "exported"}

DECISION_SCHEMA = pa.schema(
    [
        (
            f.name,
            pa.float64()
            if f.name in _FLOATS
            else pa.int64()
            if f.name in _INTS
            else pa.bool_()
            if f.name in _BOOLS
            else pa.string(),
        )
        for f in fields(Decision)
    ]
)
"""`spool/decisions/*.parquet`: one row per decision, as it was when decided."""

EXPORT_SCHEMA = pa.schema(
    [
        ("trace_id", pa.string()),
        ("exporter", pa.string()),
        ("outcome", pa.string()),
        ("spans", pa.int64()),
        ("at", pa.string()),
    ]
)
"""`spool/exports/*.parquet`: later outcomes. `outcome` is `exported`, `late_spans` or `dead_letter`."""

TRACE_SCHEMA = pa.schema(
    [
        ("trace_id", pa.string()),
        ("root_span_id", pa.string()),
        ("project", pa.string()),
        ("decided_at", pa.string()),
        ("trace", pa.string()),
    ]
)
"""`spool/traces/*.parquet`: kept traces, the inputs of the state. `trace` is the JSON object of a `Trace`."""
