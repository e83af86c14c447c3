"""The engine step by step under a clock that tests move: scorers that fail, disks that refuse, restarts."""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from serving.bench import DEADLINE, Bench, FixedScorer, ListExporter
from serving.harness import make_request, new_trace, wait_until

from observer_core.decision.protocol import Score
from observer_core.errors import ObserverError
from observer_core.traces.trace import Trace
from observer_serving import reader
from observer_serving.assemble import AssembledTrace
from observer_serving.buffer.protocol import Logged
from observer_serving.buffer.received import JsonTrace, Received
from observer_serving.candidate import Candidate, read_spans
from observer_serving.export import ExportItem
from observer_serving.metrics import Metrics
from observer_serving.receive.wire import cut
from observer_serving.undeliverable import Undeliverable


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_trace_goes_all_the_way_and_the_log_is_released_last(bench: Bench):
    trace_id, span_ids = new_trace(3)
    bench.receive(trace_id, span_ids)
    bench.settle()
    (decision,) = bench.decisions()
    assert (decision.decision, decision.reason, decision.spans) == ("keep", "score", 3)
    assert [item.spans for item in bench.exporters[0].items] == [3]
    assert bench.released == {}, "not before the spool is sealed"
    bench.settle(11)
    assert bench.released == {0: 1}
    assert bench.record.settled == 1
    assert len(list((bench.folder / "spool" / "decisions").glob("*.parquet"))) == 1


@pytest.mark.parametrize("on_failure", ["random_share", "keep"])
def test_a_scorer_that_raises_costs_only_the_trace_it_raises_on(tmp_path: Path, on_failure: str):
    bench = Bench(tmp_path, on_scorer_failure=on_failure)
    bench.scorer.fails_on = "poison"
    bad, good = new_trace(), new_trace()
    bench.receive(*bad, question="poison")
    bench.receive(*good)
    bench.settle()
    by_id = {d.trace_id: d for d in bench.decisions()}
    assert (by_id[good[0].hex()].reason, by_id[good[0].hex()].p_wrong) == ("score", 0.9)
    failed = by_id[bad[0].hex()]
    assert (failed.reason, failed.p_wrong) == ("scorer_failed", None)
    assert failed.decision == ("keep" if on_failure == "keep" else "drop")


@pytest.mark.parametrize(
    "nonsense", [[], [Score(float("nan"), float("nan"))], [Score(0.5, 1.5)], [Score(0.5, 0.5)] * 2]
)
def test_nonsense_is_no_score(bench: Bench, nonsense: list[Score]):
    bench.scorer.nonsense = nonsense
    bench.receive(*new_trace())
    bench.settle()
    (decision,) = bench.decisions()
    assert (decision.reason, decision.p_wrong) == ("scorer_failed", None)


def test_without_a_turn_before_the_deadline_it_is_overload(bench: Bench):
    bench.receive(*new_trace())
    bench.engine.step()
    bench.clock.advance(3)
    bench.engine.step()
    assert bench.scoring.waiting == 1
    bench.clock.advance(DEADLINE)
    bench.engine.step()
    (decision,) = bench.decisions()
    assert decision.reason == "overload"


def test_a_fault_costs_its_own_trace_only_and_is_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    poisoned, fine = new_trace(), new_trace()
    take = bench.engine._receive

    def receive(entry: Any, item: Any, *args: Any, **options: Any) -> None:
        if item.trace_id == poisoned[0]:
            raise ValueError("a bug")
        take(entry, item, *args, **options)

    monkeypatch.setattr(bench.engine, "_receive", receive)
    bodies = [make_request(trace) for trace in (poisoned, fine)]
    received = [Received(bench.clock.now_ns(), tuple(cut(b, b.SerializeToString()).pieces)) for b in bodies]
    bench.engine.accept([Logged(number, entry) for number, entry in enumerate(received)])  # one commit of two clients
    bench.settle()
    (decision,) = bench.decisions()
    assert decision.trace_id == fine[0].hex()
    assert bench.metrics.faults._value.get() == 1


def test_a_trace_that_cannot_be_delivered_is_set_aside_and_the_ones_behind_it_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    poisoned, fine = new_trace(2), new_trace()
    submit = bench.exporters[1].submit

    def broken(item: ExportItem) -> None:
        if item.trace_id == poisoned[0].hex():
            raise ValueError("a bug")
        submit(item)

    monkeypatch.setattr(bench.exporters[1], "submit", broken)
    for trace in (poisoned, fine):
        bench.receive(*trace)
    bench.settle()
    bench.settle(11)
    assert [item.trace_id for item in bench.exporters[1].items] == [fine[0].hex()]
    assert bench.record.settled == 2
    assert bench.engine.failure is None
    assert bench.metrics.faults._value.get() == 1
    kept = bench.folder / "undeliverable" / f"{poisoned[0].hex()}.pb"
    spans = [
        s
        for rs in ExportTraceServiceRequest.FromString(kept.read_bytes()).resource_spans
        for ss in rs.scope_spans
        for s in ss.spans
    ]
    assert {span.span_id for span in spans} == set(poisoned[1])
    assert Undeliverable(bench.folder / "undeliverable").erase(poisoned[0].hex()) == 1
    assert not kept.exists()
    sealed = {table: spooled(bench, table) for table in ("decisions", "traces")}
    assert sealed == {"decisions": sorted([poisoned[0].hex(), fine[0].hex()]), "traces": [fine[0].hex()]}


def spooled(bench: Bench, table: str) -> list[str]:
    """The traces in the sealed files of a table."""
    files = sorted((bench.folder / "spool" / table).glob("*.parquet"))
    return sorted(trace_id for file in files for trace_id in pq.read_table(file)["trace_id"].to_pylist())


def test_late_spans_that_cannot_be_forwarded_are_set_aside_and_the_ones_behind_them_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    poisoned, fine = new_trace(2), new_trace(2)
    for trace_id, span_ids in (poisoned, fine):
        bench.receive(trace_id, span_ids[:1])
    bench.settle()
    sent = bench.exporters[1].items.copy()
    submit = bench.exporters[1].submit

    def broken(item: ExportItem) -> None:
        if item.trace_id == poisoned[0].hex():
            raise ValueError("a bug")
        submit(item)

    monkeypatch.setattr(bench.exporters[1], "submit", broken)
    for _ in range(2):  # and once more, as a client does that heard no answer
        for trace_id, span_ids in (poisoned, fine):
            bench.receive(trace_id, span_ids[1:])
        bench.settle()
    assert bench.engine.failure is None
    assert bench.metrics.faults._value.get() == 1
    assert len(bench.exporters[1].items) == len(sent) + 1
    assert [decision.late_spans for decision in bench.decisions()] == [1, 1]
    bench.settle(11)
    assert sum(bench.released.values()) == len(bench.log), "the log may forget them all"
    aside = Undeliverable(bench.folder / "undeliverable")
    assert aside.count() == 1
    (file,) = (bench.folder / "undeliverable").iterdir()
    (late,) = ExportTraceServiceRequest.FromString(file.read_bytes()).resource_spans
    assert [span.span_id for scope in late.scope_spans for span in scope.spans] == poisoned[1][1:]
    assert aside.erase(poisoned[0].hex()) == 1
    assert aside.count() == 0


def test_late_spans_that_one_exporter_refuses_go_to_the_others_once_and_count_once(bench: Bench):
    first, second = bench.exporters
    traces = [new_trace(3), new_trace(3)]
    for trace_id, span_ids in traces:
        bench.receive(trace_id, span_ids[:1])
    bench.settle()

    def counted() -> tuple[float, float, float]:
        metrics = bench.metrics
        return tuple(
            counter._value.get()
            for counter in (metrics.spans_kept, metrics.spans_late.labels("keep"), metrics.spans_duplicate)
        )

    second.full = True
    before = counted()
    for trace_id, span_ids in traces:
        bench.receive(trace_id, span_ids[:2])
    for _ in range(4):
        bench.settle()
    bench.receive(traces[0][0], traces[0][1][1:])  # one of them again, and one more
    bench.settle()
    assert bench.engine.failure is not None
    assert counted() == before, "what has not reached everybody is not counted yet"
    assert [item.spans for item in first.items[2:]] == [1]
    second.full = False
    bench.settle()
    bench.settle()
    for exporter in (first, second):
        assert [(item.trace_id, item.spans) for item in exporter.items[2:]] == [
            (traces[0][0].hex(), 1), (traces[1][0].hex(), 1), (traces[0][0].hex(), 1)
        ]  # fmt: skip
    kept, late, duplicates = (after - was for after, was in zip(counted(), before, strict=True))
    assert (kept, late, duplicates) == (3, 3, 3)
    assert sorted(decision.late_spans for decision in bench.decisions()) == [1, 2]


def test_late_spans_that_the_record_refuses_are_not_forwarded_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    trace_id, span_ids = new_trace(3)
    bench.receive(trace_id, span_ids[:1])
    bench.settle()
    add_late, refusals = bench.record.add_late, [sqlite3.OperationalError("database or disk is full")] * 2

    def full(late: Any) -> None:
        if refusals:
            raise refusals.pop()
        add_late(late)

    monkeypatch.setattr(bench.record, "add_late", full)
    bench.receive(trace_id, span_ids[1:])
    for _ in range(4):
        bench.settle()
    assert refusals == []
    assert [item.spans for item in bench.exporters[0].items] == [1, 2]
    assert bench.metrics.spans_kept._value.get() == 3


def test_what_is_delivered_again_after_a_restart_is_counted_once_as_received_and_as_kept(bench: Bench):
    trace_id, span_ids = new_trace(3)
    bench.receive(trace_id, span_ids[:2])
    bench.settle()
    bench.receive(trace_id, span_ids[2:])  # late
    bench.receive(trace_id, span_ids[:1])  # sent again
    bench.settle()
    json_id = b"j" * 16
    bench.put(Received(bench.clock.now_ns(), (JsonTrace(json_id, b'{"question": "q", "final_answer": "a"}'),)))
    bench.settle()
    names = ("received", "kept", "dropped", "rejected", "duplicate")

    def counted() -> dict[str, float]:
        return {name: getattr(bench.metrics, f"spans_{name}")._value.get() for name in names}

    before = counted()
    bench.crash()
    bench.settle()
    more = {name: value - before[name] for name, value in counted().items()}
    assert more["received"] == 4
    assert more["received"] == sum(more[name] for name in names[1:])
    assert more["kept"] >= 2


def test_a_scorer_that_hangs_is_given_up_and_its_late_answer_changes_nothing(bench: Bench):
    first, second = new_trace(), new_trace()

    class Hangs(FixedScorer):
        def score(self, traces: Sequence[Trace]) -> list[Score]:
            bench.receive(*second)
            bench.engine.step()
            bench.clock.advance(DEADLINE + 3)
            bench.engine.step()
            assert bench.scoring.stalled()
            return super().score(traces)

    bench.scoring.route().use(bench.model(Hangs()))
    bench.receive(*first)
    bench.settle()
    bench.settle()
    reasons = {d.trace_id: d.reason for d in bench.decisions()}
    assert reasons[first[0].hex()] == "scorer_failed"
    assert len(bench.decisions()) == 2


def test_a_crash_between_decision_and_delivery_delivers_the_recorded_decision(bench: Bench):
    trace_id, span_ids = new_trace(3)
    bench.exporters[1].full = True
    bench.receive(trace_id, span_ids)
    json_id = b"j" * 16
    bench.put(Received(bench.clock.now_ns(), (JsonTrace(json_id, b'{"question": "q", "final_answer": "a"}'),)))
    bench.settle()
    before = bench.decisions()
    assert len(before) == 2
    assert bench.exporters[1].items == []
    bench.scorer.p_wrong = 0.1  # another decision now, were it made again
    bench.exporters[1].full = False
    bench.crash()
    bench.settle(11)
    assert bench.decisions() == before
    assert sorted(item.trace_id for item in bench.exporters[1].items) == sorted([trace_id.hex(), json_id.hex()])
    assert all(item.decision in before for item in bench.exporters[1].items)
    assert bench.released == {0: 1, 1: 1}


def test_what_is_decided_while_the_log_is_read_back_settles_nothing_that_waits_to_be_delivered(bench: Bench):
    undelivered, open_ = new_trace(2), new_trace(2)
    for exporter in bench.exporters:
        exporter.full = True
    bench.receive(*undelivered)
    bench.settle()
    bench.receive(*open_)
    bench.record.close()
    bench.open()
    for exporter in bench.exporters:
        exporter.full = False
    for entry in bench.log:
        bench.engine.accept_again([entry], 0)
    bench.settle()
    bench.settle(11)
    assert [item.trace_id for item in bench.exporters[0].items] == [open_[0].hex()]
    assert not bench.released
    bench.crash()  # before all has been read back
    bench.settle(11)
    assert undelivered[0].hex() in [item.trace_id for item in bench.exporters[0].items]
    assert bench.released == {0: 1, 1: 1}


def test_what_another_engine_delivers_is_counted_as_moved(bench: Bench):
    for exporter in bench.exporters:
        exporter.full = True
    bench.receive(*new_trace(3))
    bench.settle()
    bench.record.close()
    bench.metrics = Metrics()
    bench.open()
    bench.receive(*new_trace(2))
    bench.engine.accept_again([bench.log[0]], 0)
    bench.engine.forget(0, lambda trace_id: True)
    bench.engine.step()
    moved, received = bench.metrics.spans_moved, bench.metrics.spans_received
    assert moved._value.get() == received._value.get() == 5


def test_a_full_exporter_holds_back_but_the_others_get_each_trace_once(bench: Bench):
    bench.exporters[1].full = True
    for _ in range(3):
        bench.receive(*new_trace())
    for _ in range(5):
        bench.settle()
    assert len(bench.exporters[0].items) == 1
    assert bench.engine.failure is not None
    assert bench.engine.backlog_bytes > 0
    bench.exporters[1].full = False
    bench.settle()
    assert [len(exporter.items) for exporter in bench.exporters] == [3, 3]
    assert bench.engine.failure is None
    assert bench.engine.backlog_bytes == 0


def test_a_record_that_cannot_be_written_is_tried_again_with_the_same_decision(bench: Bench, monkeypatch):
    real_add = bench.record.add
    monkeypatch.setattr(
        bench.record, "add", lambda decided: (_ for _ in ()).throw(sqlite3.OperationalError("disk full"))
    )
    bench.receive(*new_trace())
    bench.settle()
    assert "disk full" in (bench.engine.failure or "")
    assert bench.exporters[0].items == []
    bench.scorer.p_wrong = 0.1
    monkeypatch.setattr(bench.record, "add", real_add)
    bench.settle()
    (decision,) = bench.decisions()
    assert decision.p_wrong == 0.9
    assert len(bench.exporters[0].items) == 1


def test_spans_that_come_while_their_trace_is_being_scored_are_late(bench: Bench):
    trace_id, span_ids = new_trace(4)
    bench.receive(trace_id, span_ids[:3])
    bench.engine.step()
    bench.clock.advance(3)
    bench.engine.step()  # complete, waits for its score
    bench.receive(trace_id, [span_ids[0], span_ids[3]])
    bench.engine.step()
    assert bench.scoring.run_once()
    bench.engine.step()
    (decision,) = bench.decisions()
    assert (decision.spans, decision.late_spans) == (3, 1)
    assert [(item.decision is None, item.spans) for item in bench.exporters[0].items] == [(False, 3), (True, 1)]


def test_a_large_trace_is_read_while_its_neighbours_are_decided(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    may_read = threading.Event()

    def slow(assembled: AssembledTrace) -> Candidate:
        assert may_read.wait(30)
        return read_spans(assembled)

    def are_decided(count: int) -> bool:
        bench.scoring.run_once()
        return len(bench.decisions()) == count

    monkeypatch.setattr(reader, "read_spans", slow)
    large, small = new_trace(300), new_trace(3)
    bench.receive(*large)
    bench.receive(*small)
    bench.engine.start()
    wait_until(lambda: bench.engine.open_traces == 2)
    bench.clock.advance(3)
    bench.engine.put(None)
    wait_until(lambda: are_decided(1))
    assert [decision.trace_id for decision in bench.decisions()] == [small[0].hex()]
    assert bench.engine.open_traces == 1
    bench.receive(large[0], new_trace(1)[1])
    may_read.set()
    wait_until(lambda: are_decided(2))
    bench.engine.drain(30)
    decision = bench.record.get(large[0].hex())
    assert decision is not None
    assert (decision.reason, decision.spans, decision.late_spans) == ("score", 300, 1)


def test_a_large_trace_is_handed_over_while_its_neighbours_are_decided(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Those after it wait for their turn; what the disk refuses is tried again, and no exporter gets a trace twice."""
    may_write = threading.Event()
    first, second = bench.exporters
    refusals = ["the disk is full"]

    def slow(item: ExportItem) -> None:
        if item.spans == 300:
            assert may_write.wait(30)
            if refusals:
                raise ObserverError(refusals.pop())
        ListExporter.submit(second, item)

    def are_decided(count: int) -> bool:
        bench.scoring.run_once()
        return len(bench.decisions()) == count

    def is_delivered() -> bool:
        bench.clock.advance(1)
        bench.engine.put(None)
        return bench.delivery.pending == 0

    monkeypatch.setattr(second, "submit", slow)
    large, small = new_trace(300), new_trace(3)
    bench.receive(*large)
    bench.engine.start()
    wait_until(lambda: bench.engine.open_traces == 1)
    bench.clock.advance(3)
    bench.engine.put(None)
    wait_until(lambda: are_decided(1))
    bench.receive(*small)
    bench.receive(large[0], new_trace(1)[1])
    wait_until(lambda: bench.engine.open_traces == 1)
    bench.clock.advance(3)
    bench.engine.put(None)
    wait_until(lambda: are_decided(2))
    assert [item.spans for item in first.items] == [300]
    assert second.items == []
    erased = bench.engine.call(bench.engine.deliver_now)
    wait_until(lambda: bench.engine._events.empty())
    assert not erased.done(), "who erases a trace waits until it has been handed over"
    may_write.set()
    with pytest.raises(ObserverError, match="the disk is full"):
        erased.result(30)
    wait_until(is_delivered)
    bench.engine.drain(30)
    for exporter in (first, second):
        assert [(item.decision is not None, item.spans) for item in exporter.items] == [
            (True, 300),
            (True, 3),
            (False, 1),
        ]


def test_what_the_drain_deadline_leaves_is_decided_after_a_restart(bench: Bench):
    bench.receive(*new_trace(3))
    bench.engine.start()
    wait_until(lambda: bench.engine.open_traces == 1)
    bench.engine.drain(0.1)  # nobody runs the scorer
    assert not bench.engine.alive, "it would go on writing to what is closed next"
    assert bench.decisions() == []
    bench.crash()
    bench.settle()
    assert len(bench.decisions()) == 1


def test_a_batch_sent_again_around_a_crash_counts_once(bench: Bench):
    trace_id, span_ids = new_trace(3)
    bench.receive(trace_id, span_ids)
    bench.settle(11)
    bench.settle(11)
    bench.receive(trace_id, span_ids)  # the client never got our answer
    bench.crash()
    bench.settle()
    (decision,) = bench.decisions()
    assert (decision.spans, decision.late_spans) == (3, 0)
    assert len(bench.exporters[0].items) == 1


def test_budget_epochs_are_logged_before_they_decide_and_survive(tmp_path: Path):
    bench = Bench(tmp_path, keep_threshold=None, review_budget={"share": 0.1, "window": "10m"}, random_share=0.02)
    bench.receive(*new_trace())
    bench.settle()
    (first,) = bench.decisions()
    assert first.threshold is not None
    assert (tmp_path / "epochs.jsonl").read_text().count("\n") == 1
    bench.crash()
    bench.receive(*new_trace())
    bench.settle()
    assert bench.decisions()[0].threshold == first.threshold
    assert (tmp_path / "epochs.jsonl").read_text().count("\n") == 1
    bench.clock.advance(60)
    bench.receive(*new_trace())
    bench.settle()
    assert (tmp_path / "epochs.jsonl").read_text().count("\n") == 2


def test_a_wall_clock_that_jumps_neither_delays_nor_hastens(bench: Bench):
    bench.receive(*new_trace())
    bench.engine.step()
    bench.clock.jump(-3600)
    bench.clock.advance(1.9)
    bench.engine.step()
    assert bench.scoring.waiting == 0
    bench.clock.jump(7200)
    bench.engine.step()
    assert bench.scoring.waiting == 0
    bench.clock.advance(0.1)
    bench.engine.step()
    assert bench.scoring.waiting == 1
