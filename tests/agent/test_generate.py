"""Labeled traces in bulk, in worker processes, with and without a receiver."""

import json
from pathlib import Path

import pytest
from agent_runs import Receiver

from observer_core.errors import InputError, ObserverError
from observer_core.traces.jsonl import read_jsonl
from observer_core.traces.normalise import normalise
from observer_core.traces.trace import Trace
from observer_pipeline.agent.faults import FaultPlan
from observer_pipeline.agent.generate import LEDGER_FILE, TRACES_FILE, GenerateOptions, generate

PLAN = FaultPlan({"contradiction": 0.2, "missing_evidence": 0.2, "early_stop": 0.2, "weak_model": 0.2}, seed=3)


def without_ids_and_times(trace: Trace) -> dict:
    row = trace.to_json()
    return {key: value for key, value in row.items() if key not in ("trace_id", "latency_ms")}


def test_a_batch_is_written_delivered_and_repeatable(tmp_path: Path, receiver: Receiver) -> None:
    seen = []
    options = GenerateOptions(24, seed=4, faults=PLAN, endpoint=receiver.url, service_name="shop", project="p1")
    result = generate(options, out=tmp_path / "out", progress=lambda what, fraction: seen.append(fraction))
    assert seen[0] == 0
    assert seen[-1] == 1

    # The files hold the result; every trace has its ledger entry.
    rows = read_jsonl(tmp_path / "out" / TRACES_FILE)
    assert [r.to_json() for r in rows] == [t.to_json() for t in result.traces]
    ledger = [json.loads(line) for line in (tmp_path / "out" / LEDGER_FILE).open(encoding="utf-8")]
    assert [entry["trace_id"] for entry in ledger] == [t.trace_id for t in rows]
    assert [entry["fault"] for entry in ledger] == [t.failure_type for t in rows]
    assert {t.failure_type for t in rows} >= {None, "early_stop"}
    assert all(t.label and t.label_source == "gold" and t.gold_answer for t in rows)

    # What arrived by OTLP reads back as the same traces.
    received = {trace_id: normalise(spans) for trace_id, spans in receiver.by_trace().items()}
    assert received.keys() == {t.trace_id for t in rows}
    assert result.spans_delivered == sum(read.spans for read in received.values())
    for row in rows:
        read = received[row.trace_id]
        assert (read.service, read.project, read.complete) == ("shop", "p1", True)
        got = read.trace
        assert (got.question, got.tool_calls, got.evidence, got.final_answer) == (
            row.question, row.tool_calls, row.evidence, row.final_answer,
        )  # fmt: skip

    # The same options give the same traces, by however many workers and in however many calls.
    again = generate(GenerateOptions(8, seed=4, faults=PLAN, workers=2, first=16))
    assert [without_ids_and_times(t) for t in again.traces] == [without_ids_and_times(t) for t in rows[16:]]


def test_nothing_is_left_when_spans_cannot_be_delivered(tmp_path: Path, receiver: Receiver) -> None:
    receiver.status = 400
    with pytest.raises(ObserverError, match="spans did not arrive"):
        generate(GenerateOptions(2, endpoint=receiver.url), out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (GenerateOptions(0), "at least 1"),
        (GenerateOptions(1, endpoint="http://127.0.0.1:9"), "no OTLP receiver at http://127.0.0.1:9/v1/traces"),
        (GenerateOptions(1, endpoint="nonsense"), "no OTLP receiver"),
        (GenerateOptions(1, source="absent.json"), "cannot read absent.json"),
    ],
)
def test_unusable_options_fail_before_any_work(tmp_path: Path, options: GenerateOptions, says: str) -> None:
    with pytest.raises(InputError) as caught:
        generate(options, out=tmp_path / "out")
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep", encoding="utf-8")
    with pytest.raises(InputError, match="exists already"):
        generate(GenerateOptions(1), out=tmp_path)
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "keep"


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_all_real_questions_run(shared_data: Path) -> None:
    source = str(shared_data / "hotpotqa/questions.jsonl")
    result = generate(GenerateOptions(1251, faults=PLAN, workers=2, source=source))
    assert len(result.traces) == 1251
    assert {t.failure_type for t in result.traces} == {None, *PLAN.rates}
