"""The warehouse's tables: their columns, and traces as rows.

| table | one row per | parts |
|---|---|---|
| `questions`, `corpus` | user question, paragraph | one |
| `agent_traces` | run of the test agent | one |
| `gold_labels` | agent trace with a gold answer | one |
| `phoenix_annotations` | annotation `correctness`, newest version | one |
| `review_queue` | kept trace drawn for review | one per draw |
| `labeled_traces`, `dataset_splits` | labeled trace | one |
| `training_runs` | trained run, newest of its family | one per family |
| `outside_scorers`, `outside_predictions` | model from outside; its predictions on the test split | one per model |
| `gate_verdicts` | night | one per Dagster run |
| `promotions` | promotion | one per promotion |
| `rollouts` | attempt to roll a promotion onto a service | one per service and promotion |
| `live_decisions`, `live_exports`, `live_traces` | decision, later outcome, kept trace | one per spool file |
| `served_models`, `error_rates`, `drifts` | service; estimate | one; one per Dagster run |
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from observer_core.traces.splits import normalise_question, split_of
from observer_core.traces.trace import Trace

TRACES = pa.schema(
    [
        ("trace_id", pa.string()),
        ("qid", pa.string()),
        ("group", pa.string()),  # the normalised user question: what splits and intervals are clustered by
        ("split", pa.string()),
        ("label", pa.string()),
        ("label_source", pa.string()),
        ("failure_type", pa.string()),
        ("model", pa.string()),
        ("annotator", pa.string()),
        ("weight", pa.float64()),
        ("trace", pa.string()),  # the JSON object of the trace
    ]
)

ANNOTATIONS = pa.schema(
    [
        ("id", pa.string()),
        ("target", pa.string()),  # span or trace
        ("trace_id", pa.string()),
        ("name", pa.string()),
        ("label", pa.string()),
        ("annotator_kind", pa.string()),
        ("annotator", pa.string()),
        ("source", pa.string()),
        ("created_at", pa.string()),
        ("updated_at", pa.string()),
    ]
)

REVIEW_QUEUE = pa.schema(
    [
        ("trace_id", pa.string()),
        ("drawn_at", pa.string()),
        ("review_probability", pa.float64()),
        ("score_hidden", pa.bool_()),
    ]
)

TRAINING_RUNS = pa.schema(
    [
        ("family", pa.string()),
        ("run_dir", pa.string()),
        ("run_version", pa.string()),
        ("mlflow_run_id", pa.string()),
        ("dataset_sha", pa.string()),
        ("trained_at", pa.string()),
    ]
)

OUTSIDE_SCORERS = pa.schema(
    [
        ("scorer", pa.string()),
        ("at", pa.string()),
        ("asked", pa.string()),  # the checkpoint or model asked for
        ("problem", pa.string()),  # why it was not run; null when it was
        ("note", pa.string()),
        ("dataset_sha", pa.string()),
    ]
)

GATE_VERDICTS = pa.schema(
    [
        ("at", pa.string()),
        ("challenger", pa.string()),  # run version
        ("challenger_family", pa.string()),
        ("champion", pa.string()),  # run version, null when there was none
        ("promote", pa.bool_()),
        ("reasons", pa.string()),  # JSON list
        ("numbers", pa.string()),  # JSON object
        ("dataset_sha", pa.string()),
    ]
)


def trace_row(trace: Trace) -> dict[str, object]:
    """A trace as a row of `TRACES`."""
    return {
        "trace_id": trace.trace_id,
        "qid": trace.qid,
        "group": normalise_question(trace.question),
        "split": split_of(trace),
        "label": trace.label,
        "label_source": trace.label_source,
        "failure_type": trace.failure_type,
        "model": trace.model,
        "annotator": trace.annotator,
        "weight": trace.weight,
        "trace": json.dumps(trace.to_json(), ensure_ascii=False),
    }


def traces_table(traces: Iterable[Trace]) -> pa.Table:
    """Traces as a table of `TRACES`."""
    return pa.Table.from_pylist([trace_row(trace) for trace in traces], schema=TRACES)


def traces_of(table: pa.Table) -> list[Trace]:
    """The traces of a table with a column `trace`."""
    return [Trace.from_json(json.loads(text)) for text in table.column("trace").to_pylist()]


def markdown(rows: Sequence[Mapping[str, object]], *, limit: int = 20, cut: int = 80) -> str:
    """Rows as a Markdown table for asset metadata: the first `limit`, long cells cut to `cut` characters."""
    if not rows:
        return "*(no rows)*"
    names = list(rows[0])

    def cell(value: object) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
        text = " ".join(text.split()).replace("|", "\\|")
        return text if len(text) <= cut else text[: cut - 1] + "…"

    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell(row.get(name)) for name in names) + " |" for row in rows[:limit]]
    more = len(rows) - limit
    return "\n".join(lines) + (f"\n\n… and {more} more" if more > 0 else "")
