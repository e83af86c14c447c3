"""Traces as they really come: no root, several, clocks that disagree, links and events, huge ones, evicted ones, late ones."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from serving.bench import Bench
from serving.harness import BackEnd, Service, attributes, make_request, new_trace, summed, wait_until
from serving.test_service import assert_balanced

from observer_serving.buffer.received import Received
from observer_serving.receive.wire import cut

REMOTE = 0x300  # span flags: whether the parent is remote is known, and it is
SECOND = 10**9
TRACES = 260


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    return [s for rs in request.resource_spans for ss in rs.scope_spans for s in ss.spans]


def put(bench: Bench, request: ExportTraceServiceRequest) -> None:
    bench.put(Received(bench.clock.now_ns(), tuple(cut(request, request.SerializeToString()).pieces)))


def sent(bench: Bench) -> dict[bytes, Span]:
    """What the first exporter was given, by span id."""
    items = [span for item in bench.exporters[0].items for group in item.resource_spans
             for scope in group.scope_spans for span in scope.spans]  # fmt: skip
    assert len({span.span_id for span in items}) == len(items), "no span goes out twice"
    return {span.span_id: span for span in items}


def check_forwarded(bench: Bench, request: ExportTraceServiceRequest, root: bytes) -> None:
    """Every span went out, only `root` has the decision, the others have their bytes."""
    out = sent(bench)
    assert out.keys() == {span.span_id for span in spans_of(request)}
    for span in spans_of(request):
        if span.span_id == root:
            assert attributes(out[root])["observer.decision"] == "keep"
            assert (out[root].events, out[root].links, out[root].flags) == (span.events, span.links, span.flags)
            assert out[root].start_time_unix_nano == span.start_time_unix_nano
        else:
            assert out[span.span_id].SerializeToString() == span.SerializeToString()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_remote_parent_that_never_comes_waits_for_the_outer_timeout(bench: Bench):
    """The upper half of the trace may be on its way from another service: only the timeout says that it is not."""
    trace_id, ids = new_trace(3)
    request = make_request((trace_id, ids))
    top = spans_of(request)[0]
    top.parent_span_id, top.flags = b"elsewher", REMOTE
    put(bench, request)
    bench.settle(50)
    assert bench.decisions() == []
    bench.settle(10)
    (decision,) = bench.decisions()
    assert (decision.complete_reason, decision.spans, decision.p_wrong) == ("timeout", 3, 0.9)
    check_forwarded(bench, request, root=ids[0])


def test_a_remote_parent_that_comes_in_another_batch_is_the_root(bench: Bench):
    trace_id, ids = new_trace(4)
    upper, lower = make_request((trace_id, ids[:2]), service="shop"), make_request((trace_id, ids[2:]), service="agent")
    spans_of(lower)[0].parent_span_id, spans_of(lower)[0].flags = ids[1], REMOTE
    put(bench, lower)
    bench.settle(5)
    assert bench.decisions() == []
    put(bench, upper)
    bench.settle()
    (decision,) = bench.decisions()
    assert (decision.complete_reason, decision.spans, decision.project) == ("root_ended", 4, "shop")
    whole = ExportTraceServiceRequest(resource_spans=[*upper.resource_spans, *lower.resource_spans])
    check_forwarded(bench, whole, root=ids[0])


def test_of_several_roots_the_earliest_carries_the_decision_and_all_are_one_trace(bench: Bench):
    trace_id, ids = new_trace(4)
    request = make_request((trace_id, ids))
    first, _, second, _ = spans_of(request)
    second.parent_span_id = b""
    first.start_time_unix_nano += SECOND
    first.end_time_unix_nano += 2 * SECOND
    put(bench, request)
    bench.settle()
    (decision,) = bench.decisions()
    assert (decision.complete_reason, decision.spans) == ("root_ended", 4)
    check_forwarded(bench, request, root=ids[2])


def test_without_any_root_the_earliest_span_without_a_parent_here_carries_it(bench: Bench):
    trace_id, ids = new_trace(3)
    request = make_request((trace_id, ids))
    del request.resource_spans[0].scope_spans[0].spans[0]
    put(bench, request)
    bench.settle(61)
    (decision,) = bench.decisions()
    assert (decision.complete_reason, decision.spans) == ("timeout", 2)
    check_forwarded(bench, request, root=ids[1])


def test_parents_that_form_a_circle_do_no_harm(bench: Bench):
    trace_id, ids = new_trace(2)
    request = make_request((trace_id, ids))
    spans_of(request)[0].parent_span_id = ids[1]
    put(bench, request)
    bench.settle(61)
    assert [(d.complete_reason, d.spans) for d in bench.decisions()] == [("timeout", 2)]
    assert len(sent(bench)) == 2


LONG = {"rules": [{"name": "long", "when": {"min_duration": "10s"}, "keep": 1}]}


@pytest.mark.parametrize(
    ("times", "long"),
    [
        ({1: (-86_400, -86_399)}, True),  # a child on a machine whose clock is a day slow
        ({0: (5, -5)}, False),  # end before start
        ({0: (0, 9), 1: (3, 12)}, True),  # a child that outlives its root
        ({1: (None, None)}, False),  # times that were never set
        ({0: (0, None), 1: (0, 1)}, False),  # a span that never ended
    ],
)
def test_clocks_that_disagree_lose_no_span_and_make_no_duration_of_decades(
    tmp_path: Path, times: dict[int, tuple[int | None, int | None]], long: bool
):
    bench = Bench(tmp_path, **LONG)
    bench.scorer.p_wrong = 0.6
    trace_id, ids = new_trace(3)
    request = make_request((trace_id, ids))
    now = time.time_ns()
    for number, (start, end) in times.items():
        span = spans_of(request)[number]
        span.start_time_unix_nano = 0 if start is None else now + start * SECOND
        span.end_time_unix_nano = 0 if end is None else now + end * SECOND
    put(bench, request)
    bench.settle(61)
    (decision,) = bench.decisions()
    assert (decision.reason == "rule:long") == long
    assert decision.spans == 3
    check_forwarded(bench, request, root=ids[0])


def test_links_and_events_go_through_and_a_link_is_no_parent(bench: Bench):
    (one, one_ids), (other, other_ids) = new_trace(2), new_trace(2)
    request = make_request((one, one_ids), (other, other_ids))
    for number, span in enumerate(spans_of(request)):
        link = span.links.add(trace_id=other, span_id=other_ids[0], trace_state="a=b", flags=REMOTE)
        link.attributes.add(key="why").value.string_value = "follows"
        event = span.events.add(name="exception", time_unix_nano=number, dropped_attributes_count=2)
        event.attributes.add(key="exception.message").value.string_value = "timed out"
    put(bench, request)
    bench.settle()
    assert {(d.trace_id, d.spans) for d in bench.decisions()} == {(one.hex(), 2), (other.hex(), 2)}
    out = sent(bench)
    for span in spans_of(request):
        assert (out[span.span_id].links, out[span.span_id].events) == (span.links, span.events)


def test_an_evicted_trace_is_decided_early_and_says_so_and_its_rest_follows(service: Callable[..., Service]):
    limits = {"max_open_traces": 4, "quiet_period": "60s", "timeout": "120s"}
    with BackEnd() as back_end:
        exporters = [{"name": "x", "endpoint": back_end.endpoint}]
        live = service(policy={"keep_threshold": 0.0}, assembly=limits, exporters=exporters)
        traces = [new_trace(3) for _ in range(10)]
        for trace_id, ids in traces:
            live.export(make_request((trace_id, ids[:2])))
        decisions = live.wait_for_decisions(6)
        assert {(d["trace_id"], d["complete_reason"]) for d in decisions} == {
            (i.hex(), "evicted") for i, _ in traces[:6]
        }
        assert live.get("/v1/stats")["open_traces"] == 4
        assert live.metrics()['observer_traces_completed_total{complete_reason="evicted"}'] == 6
        logged = live.log_lines("observer.decisions")
        assert Counter(line["complete_reason"] for line in logged) == {"evicted": 6}
        live.export(make_request(traces[0]))  # the rest of a trace that had to leave
        wait_until(lambda: live.get(f"/v1/decisions/{traces[0][0].hex()}")["late_spans"] == 1)
        wait_until(lambda: len([s for s in back_end.spans() if s.trace_id == traces[0][0]]) == 3)
        root = next(s for s in back_end.spans() if s.span_id == traces[0][1][0])
        assert attributes(root)["observer.complete_reason"] == "evicted"
        assert_balanced(live)


def test_late_spans_after_a_kill_follow_the_recorded_decision(service: Callable[..., Service]):
    policy = {"keep_threshold": 0.5, "random_share": 0.0, "min_share": None}
    with BackEnd() as back_end:
        live = service(policy=policy, exporters=[{"name": "x", "endpoint": back_end.endpoint}])
        traces = [new_trace(3), new_trace(3)]
        requests = [make_request(trace) for trace in traces]
        spans_of(requests[0])[0].attributes[2].value.string_value = "I could not find it."
        for request in requests:
            early = ExportTraceServiceRequest.FromString(request.SerializeToString())
            del early.resource_spans[0].scope_spans[0].spans[2]
            live.export(early)
        before = {d["trace_id"]: d for d in live.wait_for_decisions(2)}
        verdicts = {trace_id: d["decision"] for trace_id, d in before.items()}
        assert verdicts == {traces[0][0].hex(): "keep", traces[1][0].hex(): "drop"}
        live.kill()
        # Decided now, each would go the other way or at least by another threshold.
        live.config.write_text(live.config.read_text().replace("keep_threshold: 0.5", "keep_threshold: 1.0"))
        live.start()
        for request in requests:
            live.export(request)
        wait_until(lambda: {d["late_spans"] for d in live.decisions()} == {1})
        for decision in live.decisions():
            was = before[decision["trace_id"]]
            assert decision == {**was, "late_spans": 1, "exported": decision["exported"]}
        assert live.terminate() == 0
        assert {s.span_id for s in back_end.spans()} == set(traces[0][1])


def test_a_trace_of_fifty_thousand_spans_beside_small_ones(service: Callable[..., Service]):
    """Above `max_spans` it is decided; the rest is late. Nobody else waits for it, and not a span is lost."""
    with BackEnd() as back_end:
        exporters = [{"name": "x", "endpoint": back_end.endpoint}]
        live = service(policy={"keep_threshold": 0.0}, exporters=exporters, assembly={"quiet_period": "500ms"})
        trace_id, ids = new_trace(50_000)
        small = [new_trace(3) for _ in range(50)]
        for number in range(50):
            chunk = make_request((trace_id, [ids[0], *ids[number * 1000 : (number + 1) * 1000]]))
            if number != 49:
                del chunk.resource_spans[0].scope_spans[0].spans[0]  # the root comes last
            assert live.export(chunk).status_code == 200
            live.export(make_request(small[number]))
        wait_until(lambda: summed(live.metrics(), "observer_spans_open") == 0, seconds=120)
        by_id = {d["trace_id"]: d for d in live.wait_for_decisions(51)}
        assert {by_id[i.hex()]["spans"] for i, _ in small} == {3}
        big = by_id[trace_id.hex()]
        assert big["complete_reason"] == "span_cap"
        assert 32_000 <= big["spans"] < 33_000
        assert big["spans"] + big["late_spans"] == 50_000
        wait_until(lambda: len({s.span_id for s in back_end.spans()}) == 50_150, seconds=120)
        assert_balanced(live)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_log_larger_than_the_bound_on_memory_is_read_back_within_it(service: Callable[..., Service]):
    """Written under a larger bound; what does not fit is decided early and says so. A segment (64 MiB) is read at once,
    so memory grows by one or two of those, however long the log is."""
    limits = {"quiet_period": "10m", "timeout": "20m"}
    live = service(policy={"keep_threshold": 0.0}, assembly=limits | {"max_total_bytes": "400MiB"})
    traces = [new_trace(2) for _ in range(TRACES)]
    for trace in traces:
        assert live.export(make_request(trace, question="long " * 200_000)).status_code == 200
    wait_until(lambda: live.get("/v1/stats")["open_traces"] == TRACES)
    log = sum(f.stat().st_size for f in (live.home / "serving" / "wal").glob("*.wal"))
    assert log > TRACES * 990_000
    live.kill()
    live.config.write_text(live.config.read_text().replace("400MiB", "8MiB"))
    live.start()
    assert live.process is not None
    peak = psutil.Process(live.process.pid).memory_info().rss
    decisions = live.wait_for_decisions(TRACES - 10, seconds=120)
    assert len({d["trace_id"] for d in decisions}) == len(decisions)
    assert {d["complete_reason"] for d in decisions} == {"evicted"}
    assert len(decisions) + live.get("/v1/stats")["open_traces"] == TRACES
    assert live.get("/readyz")["ready"]
    idle = psutil.Process(service(assembly=limits).process.pid).memory_info().rss  # type: ignore[union-attr]
    assert peak - idle < 150 << 20, (peak, idle)


def test_what_a_restart_has_to_deliver_again_is_bounded_by_bytes(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.delivery._settle_bytes = 5_000
    for _ in range(20):
        bench.receive(*new_trace(2), question="x" * 1000)
    bench.settle()
    while bench.scoring.run_once():
        bench.engine.step()
    assert len(bench.decisions()) == 20
    assert 20 - bench.released.total() <= 5, "the log may forget all but the last few, long before they are old"


def test_late_pieces_of_a_trace_that_was_erased_meanwhile_are_dropped(bench: Bench):
    trace_id, ids = new_trace(3)
    bench.receive(trace_id, ids[:2])
    bench.settle()
    bench.receive(trace_id, ids)
    bench.engine.call(lambda: bench.record.erase(trace_id))  # after the spans were taken in, before they are delivered
    bench.engine.step()
    assert bench.engine.failure is None
    assert bench.delivery.pending == 0
    assert len(sent(bench)) == 2
