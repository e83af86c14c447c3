"""Labeled traces in bulk, in worker processes, with and without a receiver, killed and gone on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_runs import Receiver

from observer_core.errors import InputError, ObserverError
from observer_core.traces.jsonl import read_jsonl
from observer_core.traces.normalise import normalise
from observer_core.traces.trace import Trace
from observer_pipeline.agent.faults import FaultPlan
from observer_pipeline.agent.generate import (
    LEDGER_FILE,
    SPANS_FILE,
    TRACES_FILE,
    GenerateOptions,
    generate,
    generate_into,
)
from observer_pipeline.agent.pieces import PIECE
from observer_pipeline.sources import load_traces

PLAN = FaultPlan({"contradiction": 0.2, "missing_evidence": 0.2, "early_stop": 0.2, "weak_model": 0.2}, seed=3)
SAME = ("question", "tool_calls", "evidence", "final_answer")


def without_ids_and_times(trace: Trace) -> dict:
    row = trace.to_json()
    return {key: value for key, value in row.items() if key not in ("trace_id", "latency_ms")}


def test_a_batch_is_written_delivered_and_repeatable(tmp_path: Path, receiver: Receiver) -> None:
    seen = []
    options = GenerateOptions(24, seed=4, faults=PLAN, endpoint=receiver.url, service_name="shop", project="p1")
    summary = generate_into(
        tmp_path / "out", options, spans=True, progress=lambda what, fraction: seen.append(fraction)
    )
    assert seen[0] == 0
    assert seen[-1] == 1
    assert not (tmp_path / "out.partial").exists()

    # Every trace has its ledger entry.
    rows = read_jsonl(tmp_path / "out" / TRACES_FILE)
    ledger = [json.loads(line) for line in (tmp_path / "out" / LEDGER_FILE).open(encoding="utf-8")]
    assert [entry["trace_id"] for entry in ledger] == [t.trace_id for t in rows]
    assert [entry["fault"] for entry in ledger] == [t.failure_type for t in rows]
    assert {t.failure_type for t in rows} >= {None, "early_stop"}
    assert all(t.label and t.label_source == "gold" and t.gold_answer for t in rows)
    assert summary.traces == 24 == sum(sum(counts.values()) for counts in summary.labels.values())

    # What arrived by OTLP reads back as the same traces, and so does the span file.
    received = {trace_id: normalise(spans) for trace_id, spans in receiver.by_trace().items()}
    assert received.keys() == {t.trace_id for t in rows}
    assert summary.spans_delivered == sum(read.spans for read in received.values())
    written = {t.trace_id: t for t in load_traces(str(tmp_path / "out" / SPANS_FILE))}
    for row in rows:
        read = received[row.trace_id]
        assert (read.service, read.project, read.complete) == ("shop", "p1", True)
        for got in (read.trace, written[row.trace_id]):
            assert [getattr(got, name) for name in SAME] == [getattr(row, name) for name in SAME]

    # The same options give the same traces, by however many workers and in however many calls.
    again = generate(GenerateOptions(8, seed=4, faults=PLAN, workers=2, first=16))
    assert [without_ids_and_times(t) for t in again.traces] == [without_ids_and_times(t) for t in rows[16:]]


def test_with_ids_and_clock_from_the_seed_everything_is_equal(tmp_path: Path) -> None:
    for workers in (1, 2):
        options = GenerateOptions(24, seed=4, faults=FaultPlan.parse("all"), workers=workers, reproducible=True)
        generate_into(tmp_path / str(workers), options, spans=True)
    for name in (TRACES_FILE, LEDGER_FILE, SPANS_FILE):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    for trace in load_traces(str(tmp_path / "1" / SPANS_FILE)):
        assert 300 < trace.latency_ms < 60_000  # as a hosted model takes
    other = GenerateOptions(24, seed=5, faults=FaultPlan.parse("all"), reproducible=True)
    generate_into(tmp_path / "other", other)
    ids = [{t.trace_id for t in read_jsonl(tmp_path / folder / TRACES_FILE)} for folder in ("1", "other")]
    assert len(ids[0]) == 24
    assert not ids[0] & ids[1]


def test_a_killed_batch_goes_on_without_repeats(tmp_path: Path, receiver: Receiver) -> None:
    """Killed with its workers orphaned; what they had delivered or written is neither run nor lost again."""
    command = [sys.executable, "-m", "observer_pipeline.cli", "agent", "generate", "--questions", "60", "--seed", "8"]
    command += ["--workers", "2", "--out", str(tmp_path / "out"), "--endpoint", receiver.url]
    work = tmp_path / "out.partial"
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(work.glob("*.done"))) < 2:
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert not (tmp_path / "out").exists()
    while _workers_of(first.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kept = {path.name: path.read_bytes() for path in work.glob("*.jsonl")}
    assert 2 <= len(kept) < 6
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = read_jsonl(tmp_path / "out" / TRACES_FILE)
    assert [row.qid for row in rows] == [f"world-8-{i}" for i in range(60)]
    for name, data in kept.items():
        ids = [json.loads(line)[0]["trace_id"] for line in data.splitlines()]
        start = int(name.removesuffix(".jsonl")) * PIECE
        assert ids == [row.trace_id for row in rows[start : start + PIECE]]
    # The receiver has every trace; a piece that was delivered but not yet entered comes again as the same spans.
    received = receiver.by_trace()
    assert received.keys() >= {row.trace_id for row in rows}
    unfinished = received.keys() - {row.trace_id for row in rows}
    assert not unfinished


def _workers_of(pid: int) -> bool:
    import psutil

    return any(str(pid) in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))


def test_spans_that_cannot_be_delivered_wait_for_the_next_try(tmp_path: Path, receiver: Receiver) -> None:
    receiver.status = 400
    options = GenerateOptions(2, endpoint=receiver.url)
    with pytest.raises(ObserverError, match="spans did not arrive"):
        generate_into(tmp_path / "out", options)
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    with pytest.raises(InputError, match="other options"):
        generate_into(tmp_path / "out", GenerateOptions(3, endpoint=receiver.url))
    [kept] = (tmp_path / "out.partial").glob("*.jsonl")
    ids = [json.loads(line)[0]["trace_id"] for line in kept.read_text("utf-8").splitlines()]
    receiver.status = 200
    generate_into(tmp_path / "out", options)
    assert list(receiver.by_trace()) == ids == [t.trace_id for t in read_jsonl(tmp_path / "out" / TRACES_FILE)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (GenerateOptions(0), "at least 1"),
        (GenerateOptions(1, endpoint="http://127.0.0.1:9"), "no OTLP receiver at http://127.0.0.1:9/v1/traces"),
        (GenerateOptions(1, endpoint="nonsense"), "no OTLP receiver"),
        (GenerateOptions(1, source="absent.json"), "cannot read absent.json"),
        (GenerateOptions(1, whole_corpus=True), "no common corpus"),
        (GenerateOptions(1, model="gpt"), "unknown model 'gpt'"),
        (GenerateOptions(1, weak_model="openai:x"), "unknown model 'openai:x'"),
    ],
)
def test_unusable_options_fail_before_any_work(tmp_path: Path, options: GenerateOptions, says: str) -> None:
    with pytest.raises(InputError) as caught:
        generate_into(tmp_path / "out", options)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_and_one_that_is_no_batch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep", encoding="utf-8")
    with pytest.raises(ObserverError, match=r"cannot write .*Not a directory; choose another place"):
        generate_into(tmp_path / "file" / "out", GenerateOptions(1))
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "mine").write_text("keep", encoding="utf-8")
    with pytest.raises(InputError, match="something else than a batch"):
        generate_into(tmp_path / "out", GenerateOptions(1))
    assert (tmp_path / "out.partial" / "mine").read_text(encoding="utf-8") == "keep"


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep", encoding="utf-8")
    with pytest.raises(InputError, match="exists already"):
        generate_into(tmp_path, GenerateOptions(1))
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "keep"
