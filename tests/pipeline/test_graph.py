"""Slices of the graph on small data: what goes in, what stands in the warehouse afterwards."""

import dagster as dg
import pyarrow as pa
import pytest
from pipeline.conftest import easy_traces
from pipeline.spool_files import decision, seal, trace_row

from observer_core.traces.trace import Trace
from observer_pipeline.agent_runs import QUESTIONS
from observer_pipeline.assets import labels, live
from observer_pipeline.checks import data
from observer_pipeline.definitions import build_definitions
from observer_pipeline.tables import ANNOTATIONS, REVIEW_QUEUE, traces_of, traces_table


def materialize(settings, assets, *, selection=None, checks=(), raise_on_error=True, **run_config):
    resources = build_definitions(settings).resources
    return dg.materialize(
        [*assets, *checks],
        resources=resources,
        selection=selection,
        run_config={"ops": {name: {"config": config} for name, config in run_config.items()}},
        raise_on_error=raise_on_error,
    )


def verdict_row(trace_id, label, *, by="ann"):
    return {
        "id": f"{trace_id}-{by}", "target": "span", "trace_id": trace_id, "name": "correctness", "label": label,
        "annotator_kind": "HUMAN", "annotator": by, "source": "APP", "created_at": "1", "updated_at": "1",
    }  # fmt: skip


def write_agent(warehouse, traces):
    warehouse.write("agent_traces", traces_table(traces))
    questions = [{"qid": t.qid, "question": t.question, "answer": t.gold_answer, "aliases": []} for t in traces]
    warehouse.write("questions", pa.Table.from_pylist(questions, schema=QUESTIONS))


LABEL_ASSETS = [labels.gold_labels, labels.labeled_traces, labels.dataset_splits]
DATA_CHECKS = [
    data.no_question_in_two_splits,
    data.both_classes_in_every_split,
    data.enough_labels,
    data.sample_weights_usable,
]


def test_gold_labels_and_verdicts_become_a_data_set(settings, warehouse):
    traces = easy_traces(250)
    write_agent(warehouse, traces)
    kept = Trace(question="Is it so?", final_answer="yes", trace_id="f" * 32)
    warehouse.write("live_traces", pa.Table.from_pylist([trace_row(kept)]))
    warehouse.write("live_decisions", pa.Table.from_pylist([decision(str(kept.trace_id), keep_probability=0.25)]))
    queue = {"trace_id": kept.trace_id, "drawn_at": "1", "review_probability": 0.5, "score_hidden": False}
    warehouse.write("review_queue", pa.Table.from_pylist([queue], schema=REVIEW_QUEUE))
    corrected = str(traces[0].trace_id)
    rows = [verdict_row(kept.trace_id, "wrong"), verdict_row(corrected, "partial")]
    warehouse.write("phoenix_annotations", pa.Table.from_pylist(rows, schema=ANNOTATIONS))

    result = materialize(settings, LABEL_ASSETS, checks=DATA_CHECKS)
    assert all(check.passed for check in result.get_asset_check_evaluations())
    labeled = {t.trace_id: t for t in traces_of(warehouse.read("labeled_traces"))}
    assert len(labeled) == 251
    assert (labeled[corrected].label, labeled[corrected].label_source) == ("partial", "annotation")
    assert labeled[kept.trace_id].weight == pytest.approx(8.0)
    for trace in traces[1:]:  # exact match and F1 agree with how these were made
        assert labeled[trace.trace_id].label == ("wrong" if trace.final_answer == "not found" else "correct")
    splits = warehouse.read("dataset_splits")
    assert splits.num_rows == 251
    assert set(splits["split"].to_pylist()) == {"train", "validation", "calibration", "test"}


def test_the_data_version_changes_with_the_labels_alone(settings, warehouse):
    write_agent(warehouse, easy_traces(250))

    def version():
        result = materialize(settings, LABEL_ASSETS)
        return result.asset_materializations_for_node("dataset_splits")[0].metadata["sha"].value

    first = version()
    assert version() == first
    rows = [verdict_row(easy_traces(1)[0].trace_id, "partial")]
    warehouse.write("phoenix_annotations", pa.Table.from_pylist(rows, schema=ANNOTATIONS))
    assert version() != first


def _leak(traces):
    """One question in two splits, by explicit splits."""
    twin = Trace.from_json({**traces[0].to_json(), "trace_id": "e" * 32, "split": "test"})
    traces[0].split = "train"
    return [*traces, twin]


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        pytest.param(_leak, "no_question_in_two_splits", id="a question in two splits"),
        pytest.param(lambda traces: traces[:60], "enough_labels", id="too few labels"),
        pytest.param(
            lambda traces: [t for t in traces if t.final_answer != "not found"],
            "both_classes_in_every_split",
            id="one class",
        ),
    ],
)
def test_a_broken_data_set_stops_the_night(settings, warehouse, spoil, check):
    write_agent(warehouse, spoil(easy_traces(250)))

    @dg.asset(deps=[labels.dataset_splits])
    def training() -> None: ...

    result = materialize(settings, [*LABEL_ASSETS, training], checks=DATA_CHECKS, raise_on_error=False)
    assert not result.success
    assert check in {e.check_name for e in result.get_asset_check_evaluations() if not e.passed}
    assert result.asset_materializations_for_node("training") == []


def test_spool_files_are_taken_exactly_once(settings, warehouse, home):
    kept, dropped = easy_traces(2)
    first = [decision(str(kept.trace_id))]
    seal(home.spool, "decisions", "0001", first)
    seal(home.spool, "traces", "0001", [trace_row(kept)])
    materialize(settings, [live.live_decisions])
    materialize(settings, [live.live_decisions])
    assert warehouse.read("live_decisions").num_rows == 1
    seal(home.spool, "decisions", "0002", [decision(str(dropped.trace_id), keep=False, keep_probability=0.1)])
    result = materialize(settings, [live.live_decisions])
    metadata = result.asset_materializations_for_node("live_decisions")[0].metadata
    assert (metadata["files"].value, metadata["new_live_decisions"].value) == (1, 1)
    assert sorted(warehouse.read("live_decisions")["decision"].to_pylist()) == ["drop", "keep"]
    (back,) = traces_of(warehouse.read("live_traces"))
    assert back.question == kept.question


def test_a_broken_spool_file_is_named_and_the_others_are_taken(settings, warehouse, home):
    seal(home.spool, "decisions", "0001", [decision("1" * 32)])
    (home.spool / "decisions" / "0000.parquet").write_bytes(b"not Parquet")
    (home.spool / "decisions" / ".0002.parquet.tmp").write_bytes(b"half written")
    result = materialize(settings, [live.live_decisions], raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "0000.parquet" in failure.step_failure_data.error.cause.message
    assert warehouse.read("live_decisions")["trace_id"].to_pylist() == ["1" * 32]


def test_kept_traces_are_drawn_for_review_once(settings, warehouse, monkeypatch):
    rows = [decision(f"{i:032x}", keep=i < 20) for i in range(30)]
    warehouse.write("live_decisions", pa.Table.from_pylist(rows))
    judged = verdict_row(f"{0:032x}", "wrong")
    warehouse.write("phoenix_annotations", pa.Table.from_pylist([judged], schema=ANNOTATIONS))
    for _ in range(2):
        materialize(settings, [labels.review_queue], review_queue={"size": 100, "hidden_share": 0.0})
    drawn = warehouse.read("review_queue").to_pylist()
    assert sorted(row["trace_id"] for row in drawn) == [f"{i:032x}" for i in range(1, 20)]
    assert {row["review_probability"] for row in drawn} == {1.0}


def test_the_error_rate_counts_only_what_was_drawn(settings, warehouse):
    """100 kept for certain (all drawn, half wrong), 900 others of which 90 were kept at random (all drawn, a tenth
    wrong): 0.1 · 0.5 + 0.9 · 0.1 = 0.14. Verdicts on traces that were not drawn change nothing."""
    certain = [decision(f"{i:032x}") for i in range(100)]
    others = [decision(f"{i:032x}", keep=i < 190, keep_probability=0.1, p_wrong=0.2) for i in range(100, 1000)]
    warehouse.write("live_decisions", pa.Table.from_pylist(certain + others))
    verdicts = [verdict_row(f"{i:032x}", "wrong" if i < 50 or (i < 190 and i % 10 == 0 and i >= 100) else "correct")
                for i in range(190)]  # fmt: skip
    queue = [
        {"trace_id": row["trace_id"], "drawn_at": "1", "review_probability": 1.0, "score_hidden": False}
        for row in verdicts
    ]
    warehouse.write("review_queue", pa.Table.from_pylist(queue, schema=REVIEW_QUEUE))
    undrawn = [verdict_row(f"{i:032x}", "wrong") for i in range(300, 400)]
    warehouse.write("phoenix_annotations", pa.Table.from_pylist(verdicts + undrawn, schema=ANNOTATIONS))
    materialize(settings, [live.true_error_rate])
    (row,) = warehouse.read("error_rates").to_pylist()
    assert row["value"] == pytest.approx(0.14)
    assert row["lo"] < 0.14 < row["hi"]
    assert row["n"] == 190
