"""Erasing a trace everywhere, and removing what is too old."""

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from export.export_items import DECISION
from otlp_collector import OK, Collector
from serving.bench import Bench
from serving.harness import Service, make_request, new_trace, summed, wait_until
from serving.test_redact import files_with
from serving.test_service import assert_balanced

from observer_core.decisions import Decision
from observer_serving.buffer.record import EQUALS, DecisionRecord
from observer_serving.config import RetentionSettings
from observer_serving.epochs import FileEpochs
from observer_serving.retention import Retention

QUIET = {"assembly": {"quiet_period": "100ms", "timeout": "60s"}}
DOWN = [{"name": "down", "endpoint": "http://127.0.0.1:9/v1/traces"}]


def erase(live: Service, trace_id: str) -> dict[str, Any]:
    answer = httpx.delete(f"{live.api}/v1/traces/{trace_id}", timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_kept_trace_is_gone_from_every_file_and_does_not_come_back(service):
    live: Service = service(policy={"keep_threshold": 0.0}, exporters=DOWN, **QUIET)
    (gone, gone_spans), (stays, stays_spans) = new_trace(3), new_trace(3)
    live.export(make_request((gone, gone_spans[:2]), question="the secret question"))
    live.export(make_request((stays, stays_spans), question="the other question"))
    live.wait_for_decisions(2)
    wait_until(lambda: bool(list((live.home / "spool" / "traces").glob("*.parquet"))))
    erased = erase(live, gone.hex())
    assert (erased["decisions"], erased["queued"], erased["exported"]) == (1, 1, False)
    assert erased["spool_rows"] == 2
    assert files_with(live.home, b"the secret question") == []
    assert files_with(live.home, b"the other question")
    assert httpx.get(f"{live.api}/v1/decisions/{gone.hex()}").status_code == 404
    assert live.get("/v1/stats")["decisions_on_record"] == 1
    live.export(make_request((gone, gone_spans), question="the secret question"))  # its client sends the rest
    live.post_trace({"question": "the secret question", "final_answer": "a", "trace_id": gone.hex()})
    wait_until(lambda: summed(live.metrics(), "observer_spans_received_total") == 8)
    wait_until(lambda: summed(live.metrics(), "observer_spans_open") == 0)
    assert [d["trace_id"] for d in live.decisions()] == [stays.hex()]
    assert_balanced(live)
    again = erase(live, gone.hex())
    assert again["decisions"] == again["spool_rows"] == again["queued"] == 0
    live.kill()
    live.start()
    assert [d["trace_id"] for d in live.decisions()] == [stays.hex()]
    live.post_trace({"question": "q", "final_answer": "a"})
    assert len(live.wait_for_decisions(2)) == 2, "a row that was removed leaves its number behind"


def test_an_open_trace_is_erased_undecided(service):
    live: Service = service(policy={"keep_threshold": 0.0}, assembly={"quiet_period": "60s", "timeout": "120s"})
    trace_id, span_ids = new_trace(2)
    live.export(make_request((trace_id, span_ids), question="the secret question"))
    other = new_trace(2)
    live.export(make_request(other, question="the other question"))
    assert files_with(live.home, b"the secret question")
    assert erase(live, trace_id.hex())["log_items"] == 1
    assert files_with(live.home, b"the secret question") == []
    assert live.get("/v1/stats")["open_traces"] == 1
    assert_balanced(live)
    live.kill()
    live.start()
    assert live.get("/v1/stats")["open_traces"] == 1, "the other one is still in the log"
    assert live.terminate() == 0


def test_a_dead_letter_goes_too_and_the_command_works_without_the_service(service):
    def refuse(received: Any):
        return (400, {}, b"no") if b"the secret question" in received.body else OK

    with Collector(answer=refuse) as back:
        exporters = [{"name": "picky", "endpoint": back.endpoint}]
        live: Service = service(policy={"keep_threshold": 0.0}, exporters=exporters, **QUIET)
        trace_id = live.post_trace({"question": "the secret question", "final_answer": "a"})
        wait_until(lambda: bool(list((live.home / "serving" / "export" / "picky" / "dead").glob("*.dead"))))
        assert live.terminate() == 0
    assert files_with(live.home, b"the secret question")
    done = _observer(live, "erase", trace_id)
    assert done.returncode == 0, done.stderr
    assert "1 decision" in done.stdout
    assert files_with(live.home, b"the secret question") == []
    nothing = _observer(live, "erase", "00" * 15 + "01")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)
    live.start()
    other = live.post_trace({"question": "another secret", "final_answer": "a"})
    live.wait_for_decisions(1)
    through = _observer(live, "erase", other, "--url", live.api)
    assert through.returncode == 0, through.stderr
    assert live.decisions() == []


def test_what_a_crash_left_of_a_file_being_written_is_gone_after_it(service):
    """It would hold a trace's texts for ever: neither erasing nor retention looks at half a file."""
    live: Service = service(policy={"keep_threshold": 0.0}, exporters=DOWN, **QUIET)
    live.kill()
    serving = live.home / "serving"
    places = (
        serving / "wal" / "1.rewritten", serving / "export" / "down" / "queue" / "1-1-a.spans",
        serving / "export" / "down" / "dead" / "1-1-a.dead", serving / "undeliverable" / "aa.pb",
        *(live.home / "spool" / table / "x.parquet" for table in ("decisions", "exports", "traces")),
    )  # fmt: skip
    for place in places:
        left = place.with_name(f".{place.name}.0123abcd.tmp")
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"the secret question")
    live.start()
    assert files_with(live.home, b"the secret question") == []


def _observer(live: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from observer_pipeline.cli import main; main()", *arguments],
        env=os.environ | {"OBSERVER_HOME": str(live.home)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


# --- retention


def test_old_decisions_spool_files_and_dead_letters_go_and_new_ones_stay(tmp_path: Path):
    bench = Bench(tmp_path)
    for _ in range(3):
        bench.receive(*new_trace())
    bench.settle()
    bench.settle(11)
    bench.clock.advance(7200)
    bench.receive(*new_trace())
    bench.settle()
    dead = tmp_path / "export" / "x" / "dead" / "1-1-a.dead"
    dead.parent.mkdir(parents=True)
    dead.write_bytes(b"")
    aside, fresh = (tmp_path / "undeliverable" / name for name in ("aa.pb", "bb.pb"))
    aside.parent.mkdir()
    for path in (aside, fresh):
        path.write_bytes(b"")
    now = bench.clock.now_ns() / 1e9
    os.utime(fresh, (now, now))
    (old,) = (tmp_path / "spool" / "decisions").iterdir()
    for path in (dead, old, aside):
        os.utime(path, (1, 1))
    settings = RetentionSettings(decisions=3600.0, spool=3600.0, dead_letters=3600.0)
    retention = Retention(settings, tmp_path, bench.engine, bench.record, bench.delivery._spool, bench.clock)

    def call(function):  # the engine's thread is not running here
        future = type(bench.engine).call(bench.engine, function)
        bench.engine.step()
        return future

    bench.engine.call = call
    retention.run_once()
    assert len(bench.decisions()) == bench.record.count() == 1
    assert not dead.exists()
    assert not old.exists()
    assert list(aside.parent.iterdir()) == [fresh]
    bench.settle(11)
    assert len(list((tmp_path / "spool" / "decisions").iterdir())) == 1
    bench.crash()
    assert bench.record.count() == 1


# --- filters


def test_every_filter_uses_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("observer_serving.buffer.trace_index.CHUNK_ROWS", 8)
    record = DecisionRecord(tmp_path / "d.sqlite")
    record.add([(Decision(**(DECISION.to_json() | {"trace_id": f"{i:032x}"})), b"") for i in range(20)])
    filters = dict.fromkeys(EQUALS, "x") | {"min_p_wrong": 0.5, "max_p_wrong": 0.5, "since": "2", "until": "2"}
    db = sqlite3.connect(tmp_path / "d.sqlite")
    statements: list[str] = []
    reader = record._reader()
    reader.set_trace_callback(statements.append)
    for name, value in filters.items():
        record.find({name: value}, limit=10)
    record.find({"project": "x", "min_p_wrong": 0.9}, limit=10, before=5)
    for statement in statements:
        plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}"))
        assert "SCAN decisions" not in plan, (statement, plan)
        assert "SCAN chunk_scores" not in plan, (statement, plan)
        assert "INDEX" in plan or "rowid" in plan, (statement, plan)
    assert len(statements) >= len(filters) + 1


def test_the_epochs_log_is_bounded_and_survives_torn_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("observer_serving.epochs.MAX_EPOCHS_BYTES", 30_000)
    bench = Bench(tmp_path, keep_threshold=None, review_budget={"share": 0.1, "window": "10m"}, random_share=0.02)
    file = tmp_path / "epochs.jsonl"
    for round_ in range(30):
        bench.receive(*new_trace())
        bench.settle(61)
        if round_ == 10:
            with file.open("ab") as stream:
                stream.write(b'{"torn')
    assert file.stat().st_size < 45_000
    assert file.with_name("epochs.jsonl.1").stat().st_size < 45_000
    record = FileEpochs(file).last()
    assert record is not None
    epoch = record["epoch"]["number"]
    file.unlink()
    older = FileEpochs(file).last()
    assert older is not None
    assert older["epoch"]["number"] < epoch


def test_uploads_in_use_stay_and_the_oldest_of_the_others_go(tmp_path: Path):
    from observer_serving.uploads import Uploads

    folders = [tmp_path / "models" / name for name in "abcde"]
    for age, folder in enumerate(folders):
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age, time.time() - age))
    (tmp_path / "models" / ".upload-x.tar").write_bytes(b"")
    Uploads(tmp_path, keep=1).prune([str(folders[4])])
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["a", "e"]
