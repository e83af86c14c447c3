"""Group `labels`: what is known about each trace's answer, from gold answers and from people."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa
from pydantic import Field

from observer_core.spool_tables import DECISION_SCHEMA, TRACE_SCHEMA
from observer_pipeline import annotations
from observer_pipeline.agent_runs import GOLD_LABELS, gold_table
from observer_pipeline.assets.traces import OWNERS, agent_traces
from observer_pipeline.datasets import dataset_sha, split_rows
from observer_pipeline.registry import now
from observer_pipeline.resources.phoenix import PhoenixResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import ANNOTATIONS, REVIEW_QUEUE, TRACES, markdown, traces_of, traces_table
from observer_pipeline.verdicts import draw_review, label_traces, merge_annotations

GROUP = "labels"


class AnnotationsConfig(dg.Config):
    """How far back Phoenix is read."""

    lookback_days: float = Field(default=30.0, description="traces that started longer ago are not asked about again")


class ReviewConfig(dg.Config):
    """How many kept traces people are asked about."""

    size: int = Field(default=50, description="about how many traces one draw takes")
    hidden_share: float = Field(default=0.2, description="share whose score the reviewer is not shown")


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "parquet"}, deps=[agent_traces])
def gold_labels(warehouse: Warehouse) -> dg.MaterializeResult:
    """HotpotQA's exact match and F1 of every agent answer, and the label they mean."""
    table = gold_table(traces_of(warehouse.read("agent_traces")), warehouse.read("questions"))
    warehouse.write("gold_labels", table)
    counts = warehouse.query(
        "SELECT label, count(*) AS traces, avg(f1) AS mean_f1 FROM gold_labels GROUP BY label ORDER BY label"
    ).to_pylist()
    return dg.MaterializeResult(
        metadata={"dagster/row_count": table.num_rows, "labels": dg.MetadataValue.md(markdown(counts))}
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "parquet"})
def phoenix_annotations(
    config: AnnotationsConfig, warehouse: Warehouse, phoenix: PhoenixResource
) -> dg.MaterializeResult:
    """Annotations `correctness` on root spans and traces in Phoenix, the newest version of each.

    Rows outlive the spans they speak of: Phoenix's retention does not take labels away.
    """
    since = datetime.now(UTC) - timedelta(days=config.lookback_days)
    pulled = annotations.pull(phoenix, since=since)
    table = annotations.newest(warehouse.read_or("phoenix_annotations", ANNOTATIONS), pulled)
    warehouse.write("phoenix_annotations", table)
    counts = warehouse.query(
        "SELECT label, annotator_kind, count(*) AS annotations, count(DISTINCT annotator) AS annotators "
        "FROM phoenix_annotations GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": table.num_rows,
            "pulled": pulled.num_rows,
            "labels": dg.MetadataValue.md(markdown(counts)),
            "phoenix": dg.MetadataValue.url(phoenix.base_url),
        }
    )


@dg.asset(
    group_name=GROUP,
    owners=OWNERS,
    kinds={"python", "parquet", "duckdb"},
    deps=[phoenix_annotations, dg.AssetKey("live_decisions")],
)
def review_queue(
    context: dg.AssetExecutionContext, config: ReviewConfig, warehouse: Warehouse, phoenix: PhoenixResource
) -> dg.MaterializeResult:
    """Kept traces drawn at random for people to judge, with the probability each was drawn with."""
    candidates = annotations.unreviewed(warehouse)
    scores = {row["trace_id"]: row["p_wrong"] for row in candidates}
    drawn = draw_review(
        list(scores), size=config.size, hidden_share=config.hidden_share, key=context.run.run_id.encode()
    )
    at = now()
    rows = [
        {
            "trace_id": d.trace_id,
            "drawn_at": at,
            "review_probability": d.review_probability,
            "score_hidden": d.score_hidden,
        }
        for d in drawn
    ]
    if rows:
        warehouse.write("review_queue", pa.Table.from_pylist(rows, schema=REVIEW_QUEUE), part=context.run.run_id)
    shown = [
        {"p_wrong": None if d.score_hidden else scores[d.trace_id], "trace": phoenix.trace_url(d.trace_id)}
        for d in drawn
    ]
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(rows),
            "candidates": len(candidates),
            "to_review": dg.MetadataValue.md(markdown(shown, limit=100, cut=200)),
        }
    )


@dg.asset(
    group_name=GROUP,
    owners=OWNERS,
    kinds={"python", "parquet", "duckdb"},
    deps=[agent_traces, gold_labels, phoenix_annotations, review_queue, dg.AssetKey("live_decisions")],
)
def labeled_traces(warehouse: Warehouse) -> dg.MaterializeResult:
    """Every trace with a label: the agent's by gold answers, live ones by verdict; a verdict beats a gold label."""
    merged = merge_annotations(warehouse.read_or("phoenix_annotations", ANNOTATIONS).to_pylist())
    labeled = label_traces(
        traces_of(warehouse.read_or("agent_traces", TRACES)),
        {row["trace_id"]: row for row in warehouse.read_or("gold_labels", GOLD_LABELS).to_pylist()},
        traces_of(warehouse.read_or("live_traces", TRACE_SCHEMA)),
        merged.verdicts,
        keep_probability=annotations.column_by_trace(
            warehouse.read_or("live_decisions", DECISION_SCHEMA), "keep_probability"
        ),
        review_probability=annotations.column_by_trace(
            warehouse.read_or("review_queue", REVIEW_QUEUE), "review_probability"
        ),
    )
    warehouse.write("labeled_traces", traces_table(labeled))
    counts = warehouse.query(
        "SELECT label_source, label, count(*) AS traces FROM labeled_traces GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(labeled),
            "verdicts": len(merged.verdicts),
            "ties_left_out": len(merged.ties),
            "labels": dg.MetadataValue.md(markdown(counts)),
        }
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"parquet", "duckdb"}, deps=[labeled_traces])
def dataset_splits(warehouse: Warehouse) -> dg.MaterializeResult:
    """Which split each labeled trace is in: by its user question, the same for ever."""
    table = split_rows(warehouse.read("labeled_traces"))
    warehouse.write("dataset_splits", table)
    counts = warehouse.query(
        'SELECT split, count(*) AS traces, count(DISTINCT "group") AS questions, '
        "avg(CAST(label != 'correct' AS DOUBLE)) AS share_wrong FROM dataset_splits GROUP BY split ORDER BY split"
    ).to_pylist()
    sha = dataset_sha(table)
    return dg.MaterializeResult(
        metadata={"dagster/row_count": table.num_rows, "splits": dg.MetadataValue.md(markdown(counts)), "sha": sha},
        data_version=dg.DataVersion(sha),
    )
