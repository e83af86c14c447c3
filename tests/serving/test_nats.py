"""`buffer: nats` against a real nats-server: workers share the traces, and whatever ends or moves, each is decided once."""

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from nats_server import NatsServer, needs_nats, running_nats
from serving.harness import Service, make_request, new_trace, wait_until
from serving.nats_workers import PARTS, Bare, Worker, decided_in_log, decision, of_part

from observer_core.errors import InputError
from observer_serving.buffer.nats.link import FencedError, LinkOptions, NatsLink
from observer_serving.buffer.protocol import BufferUnavailableError
from observer_serving.buffer.received import JsonTrace, Received
from observer_serving.buffer.record import read_decisions
from observer_serving.storage import read_storage

pytestmark = needs_nats


def test_workers_share_the_traces_and_all_know_every_decision(worker: Callable[..., Worker], server: NatsServer):
    one, two = worker(), worker()
    wait_until(lambda: len(one.buffer.parts) == len(two.buffer.parts) == PARTS // 2, seconds=60)
    assert sorted(one.buffer.parts + two.buffer.parts) == list(range(PARTS))
    traces = [new_trace(3) for _ in range(60)]
    for number in range(0, 60, 6):
        (one, two)[number // 6 % 2].send(*traces[number : number + 6])
    one.send(*traces[:6])  # sent again
    ids = {trace_id.hex() for trace_id, _ in traces}
    wait_until(lambda: one.decisions().keys() == two.decisions().keys() == ids, seconds=60)
    assert {d.spans for d in one.decisions().values()} == {3}
    # Counted after they are on record.
    wait_until(lambda: one.decided_here() + two.decided_here() == 60)
    assert min(one.decided_here(), two.decided_here()) > 0, "both worked"
    wait_until(lambda: one.buffer.segments == 0, seconds=60)  # everything was acknowledged, nothing stays
    assert sorted(decided_in_log(server.url)) == sorted(ids)
    rows = one.app.record.find({}, limit=1000)[0]
    assert rows == two.app.record.find({}, limit=1000)[0], "the same rows in the same order on every replica"
    one.stop()
    two.stop()


def test_a_worker_that_is_gone_loses_nothing_and_nothing_is_decided_twice(
    worker: Callable[..., Worker], server: NatsServer
):
    slow = {"assembly": {"quiet_period": "3s", "timeout": "20s"}}
    one = worker(**slow)
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    early, late = [new_trace(3) for _ in range(10)], [new_trace(3) for _ in range(10)]
    one.send(*early)
    wait_until(lambda: len(one.decisions()) == 10, seconds=60)
    before = one.decisions()
    one.send(*late)  # open when the worker goes
    one.cut_off()
    two = worker(**slow)
    two.send(*early[:5])  # sent again, to whoever is there
    wait_until(lambda: len(two.decisions()) == 20, seconds=90)
    assert {trace_id: two.decisions()[trace_id].decided_at for trace_id in before} == {
        trace_id: d.decided_at for trace_id, d in before.items()
    }
    log = decided_in_log(server.url)
    assert sorted(log) == sorted(trace_id.hex() for trace_id, _ in (*early, *late))
    two.stop()


def test_open_traces_move_with_their_part_and_late_spans_follow_the_decision(
    worker: Callable[..., Worker], server: NatsServer
):
    one = worker(assembly={"quiet_period": "5s", "timeout": "60s"})
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    trace_id, span_ids = new_trace(4)
    one.send((trace_id, span_ids[:2]))
    wait_until(lambda: one.app.engine.open_traces == 1)
    one.stop()  # hands the open trace over instead of deciding it
    assert decided_in_log(server.url) == []
    two = worker(assembly={"quiet_period": "5s", "timeout": "60s"})
    wait_until(lambda: two.app.engine.open_traces == 1, seconds=60)
    two.send((trace_id, span_ids[:3]))
    wait_until(lambda: len(two.decisions()) == 1, seconds=60)
    decision = two.decisions()[trace_id.hex()]
    assert (decision.spans, decision.complete_reason) == (3, "root_ended")
    two.send((trace_id, [span_ids[0], span_ids[3]]))
    wait_until(lambda: two.decisions()[trace_id.hex()].late_spans == 1)
    two.stop()


def test_the_server_may_be_killed_and_comes_back(worker: Callable[..., Worker], server: NatsServer):
    one = worker()
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    confirmed: list[bytes] = []
    for _ in range(3):
        for _ in range(10):
            trace = new_trace(2)
            one.send(trace)
            confirmed.append(trace[0])
        server.stop(signal.SIGKILL)
        with pytest.raises(BufferUnavailableError):
            one.send(new_trace(2))
        server.start()
        wait_until(lambda: one.buffer.refuses() is None, seconds=60)
    ids = {trace_id.hex() for trace_id in confirmed}
    wait_until(lambda: ids <= one.decisions().keys(), seconds=90)
    log = decided_in_log(server.url)
    assert len(log) == len(set(log))
    one.stop()


def test_a_trace_larger_than_a_message_goes_in_pieces(worker: Callable[..., Worker]):
    one = worker()
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    trace_id, span_ids = new_trace(2)
    one.send((trace_id, span_ids), attribute="x" * (3 << 20))
    one.send((trace_id, span_ids), attribute="x" * (3 << 20))
    one.append(Received(1, (JsonTrace(b"j" * 16, b'{"question":"q","final_answer":"%s"}' % (b"a" * 1_500_000)),)))
    wait_until(lambda: len(one.decisions()) == 2, seconds=60)
    assert one.decisions()[trace_id.hex()].spans == 2
    wait_until(lambda: one.buffer.segments == 0, seconds=60)
    one.stop()


def test_a_receiver_takes_traces_in_while_no_worker_lives(worker: Callable[..., Worker], server: NatsServer):
    buffer = {"kind": "nats", "url": server.url, "parts": PARTS, "lease": "6s", "max_bytes": "200MiB"}
    receiver = worker(buffer=buffer | {"decide": False})
    traces = [new_trace(2) for _ in range(20)]
    receiver.send(*traces)
    assert receiver.decisions() == {}
    one = worker()
    wait_until(lambda: len(receiver.decisions()) == 20, seconds=60)
    assert receiver.decisions() == one.decisions()
    receiver.stop()
    one.stop()


def test_replicas_share_epochs_and_hash_key(worker: Callable[..., Worker]):
    policy = {"policy": {"review_budget": {"share": 0.2, "window": "10m"}}}
    one, two = worker(**policy), worker(**policy)
    wait_until(lambda: len(one.buffer.parts) == len(two.buffer.parts) == PARTS // 2, seconds=60)
    for _ in range(10):
        one.send(*(new_trace(2) for _ in range(8)))
    wait_until(lambda: len(one.decisions()) == len(two.decisions()) == 80, seconds=60)
    by_epoch: dict[int, set[float | None]] = {}
    for decided in one.decisions().values():
        minute = int(decided.decided_at[14:16])  # an epoch is a tenth of the window
        by_epoch.setdefault(minute, set()).add(decided.threshold)
    assert all(len(thresholds) == 1 for thresholds in by_epoch.values()), by_epoch
    assert one.app._storage.own_key == two.app._storage.own_key
    file, key = read_storage(one.settings, one.home / "serving")  # as `observer policy simulate` does
    assert key == one.app._storage.own_key
    assert {d.trace_id for d in read_decisions(file)} == one.decisions().keys()
    one.stop()
    two.stop()


def test_a_worker_that_lost_a_part_without_knowing_cannot_decide(tmp_path: Path, server: NatsServer):
    old, new = Bare(tmp_path / "old", server.url), Bare(tmp_path / "new", server.url)
    lost: list[int] = []
    old.record.on_lost = lost.append
    for part in range(PARTS):
        old.own(part)
    first, second, elsewhere = of_part(old.link, 1), of_part(old.link, 1), of_part(old.link, 2)
    (row,) = old.record.add([(decision(first), b"a" * 8)])
    assert row is not None
    new.own(1)
    assert new.record.decided([first]) == {first}, "the new owner knows what the old one decided"
    assert [row is None for row in old.record.add([(decision(second), b"b" * 8), (decision(elsewhere), b"c" * 8)])] == [
        True,
        False,
    ]
    assert lost == [1]
    (row,) = new.record.add([(decision(second), b"b" * 8)])
    assert row is not None
    old.record.settle([(row, second.hex())])  # refused as well, silently: it is the new owner's to say
    old.record.add_late([(old.record.lookup(first), b"d" * 8)])  # type: ignore[list-item]
    new.record.settle([(row, second.hex())])
    recorded = new.record.lookup(first)
    assert recorded is not None
    assert recorded.decision.late_spans == 0
    assert sorted(decided_in_log(server.url)) == sorted(i.hex() for i in (first, second, elsewhere))
    for one in (old, new):
        one.close()


def test_a_view_that_was_lost_is_made_again_from_the_log(tmp_path: Path, server: NatsServer):
    first = Bare(tmp_path / "first", server.url)
    first.own(0)
    trace_id = of_part(first.link, 0)
    (row,) = first.record.add([(decision(trace_id), b"a" * 8)])
    recorded = first.record.lookup(trace_id)
    assert recorded is not None
    first.record.add_late([(recorded, b"b" * 8)])
    first.record.set_exported([trace_id.hex()])
    first.record.add_shadows([(trace_id.hex(), "other", {"p_wrong": 0.1})])
    first.record.settle([(row or 0, trace_id.hex())])
    again = Bare(tmp_path / "again", server.url)
    wait_until(lambda: again.record.get(trace_id.hex()) == first.record.get(trace_id.hex()))
    wait_until(lambda: again.record.is_settled(again.record.lookup(trace_id)))  # type: ignore[arg-type]
    found = again.record.lookup(trace_id)
    assert found is not None
    assert (found.row, found.span_ids, found.decision.late_spans) == (row, b"a" * 8 + b"b" * 8, 1)
    assert (found.decision.exported, found.decision.shadow) == (True, {"other": {"p_wrong": 0.1}})
    assert again.record.count() == 1
    for one in (first, again):
        one.close()


def test_a_message_is_stored_under_its_condition_only(tmp_path: Path, server: NatsServer):
    link = NatsLink(LinkOptions(server.url, parts=PARTS, max_bytes=100 << 20))
    subject = link.record_subject(0)
    first = link.call(link.publish(subject, b"{}", message_id="a"))
    assert link.call(link.publish(subject, b"{}", message_id="a")) == first, "the same message again is the same"
    second = link.call(link.publish(subject, b"{}", message_id="b", expected=first))
    assert link.call(link.publish(subject, b"{}", message_id="b", expected=first)) == second
    with pytest.raises(FencedError):
        link.call(link.publish(subject, b"{}", message_id="c", expected=first))
    link.close()


def test_what_is_wrong_at_start_is_one_line(tmp_path: Path, server: NatsServer):
    with pytest.raises(InputError, match=r"cannot use NATS at 127\.0\.0\.1:1: .*buffer\.url"):
        NatsLink(LinkOptions("nats://user:secret@127.0.0.1:1"))
    NatsLink(LinkOptions(server.url, parts=PARTS, max_bytes=100 << 20)).close()
    with pytest.raises(InputError, match=rf"buffer\.parts: {PARTS}"):
        NatsLink(LinkOptions(server.url, parts=PARTS + 1, max_bytes=100 << 20))
    with running_nats(tmp_path / "plain") as plain:
        plain.stop()
        config = plain._config.read_text().splitlines()
        plain._config.write_text(config[0])  # without JetStream
        plain.start()
        with pytest.raises(InputError, match="nats-server -js"):
            NatsLink(LinkOptions(plain.url))


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_workers_killed_at_random_moments(tmp_path: Path, server: NatsServer):
    """Real processes, `kill -9`, the server too: acknowledged and decided are the same set, each decided once."""
    rng = random.Random(11)
    live = [
        Service(
            tmp_path / f"process{number}",
            {
                "buffer": {"kind": "nats", "url": server.url, "parts": PARTS, "lease": "3s", "max_bytes": "200MiB"},
                "policy": {"keep_threshold": 0.5, "hash_key": "same"},
                "assembly": {"quiet_period": "200ms", "timeout": "30m"},
            },
        ).start()
        for number in range(2)
    ]
    acknowledged: set[str] = set()
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            trace_id, span_ids = new_trace(4)
            request = make_request((trace_id, span_ids))
            while not stop.is_set():
                try:
                    if rng.choice(live).export(request).status_code == 200:
                        acknowledged.add(trace_id.hex())
                        break
                except httpx.TransportError:
                    time.sleep(0.05)

    senders = [threading.Thread(target=send, daemon=True) for _ in range(3)]
    for sender in senders:
        sender.start()
    for number in range(8):
        seen = len(acknowledged)
        wait_until(lambda seen=seen: len(acknowledged) > seen + 5, seconds=120)
        time.sleep(rng.uniform(0, 1))
        if number % 4 == 3:
            server.stop(signal.SIGKILL)
            server.start()
        else:
            victim = live[number % 2]
            victim.kill()
            victim.start()
    stop.set()
    for sender in senders:
        sender.join(timeout=60)
    wait_until(lambda: acknowledged <= {d["trace_id"] for d in live[0].decisions()}, seconds=180)
    log = decided_in_log(server.url)
    assert len(log) == len(set(log)), "no trace was decided twice"
    assert acknowledged <= set(log)
    wait_until(lambda: live[1].decisions() == live[0].decisions(), seconds=60)
    for one in live:
        one.kill()
