"""`buffer: nats` where something goes wrong at the wrong moment: what it must neither lose nor decide twice."""

import asyncio
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats_server import NatsServer, needs_nats
from serving.harness import make_request, new_trace, wait_until
from serving.nats_workers import PARTS, Bare, Worker, decision, of_part

from observer_core.errors import InputError
from observer_serving.buffer.nats.link import LinkError, LinkOptions, NatsLink
from observer_serving.buffer.protocol import BufferUnavailableError
from observer_serving.buffer.received import Received
from observer_serving.receive.wire import cut

pytestmark = needs_nats


def test_what_is_open_stays_in_the_stream_when_its_part_is_read_again(
    worker: Callable[..., Worker], server: NatsServer
):
    """A message with a decided trace and an open one, read twice: the decided one is settled twice."""
    one = worker(assembly={"quiet_period": "200ms", "timeout": "60s"}, spool={"max_age": "1h"})
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    ended, open_ = (next(t for t in iter(new_trace, None) if one.part_of(t[0]) == 1) for _ in range(2))
    request = make_request(ended, open_)
    for span in request.resource_spans[0].scope_spans[0].spans:
        if span.trace_id == open_[0]:
            span.parent_span_id = b"not here"
    one.append(Received(time.time_ns(), tuple(cut(request, request.SerializeToString()).pieces)))
    wait_until(lambda: len(one.decisions()) == 1)
    server.stop(signal.SIGKILL)
    server.start()
    wait_until(lambda: len(one.app.engine._delivery._unsettled) == 2, seconds=60)  # delivered again
    one.app.engine.call(one.app.engine.deliver_now).result(30)
    one.stop()
    two = worker(assembly={"quiet_period": "200ms", "timeout": "1s"})
    wait_until(lambda: two.decisions().keys() == {ended[0].hex(), open_[0].hex()}, seconds=60)
    two.stop()


def test_what_one_client_sends_cannot_stop_the_record(worker: Callable[..., Worker]):
    """A trace of more span ids, or with a longer name, than fit into a message of the log."""
    one = worker()
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    many, named, other = new_trace(110_000), new_trace(2), new_trace(2)
    request = make_request(named)
    project = request.resource_spans[0].resource.attributes.add(key="openinference.project.name")
    project.value.string_value = "p" * 1_200_000
    one.send(many)
    one.append(Received(time.time_ns(), tuple(cut(request, request.SerializeToString()).pieces)))
    one.send(other)
    wait_until(lambda: len(one.decisions()) == 3, seconds=60)
    late = new_trace(110_000)[1]
    one.send((many[0], [*many[1][-2:], *late]))
    wait_until(lambda: one.decisions()[many[0].hex()].late_spans == len(late), seconds=60)
    recorded = one.app.record.lookup(many[0])
    assert recorded is not None
    assert recorded.span_ids == b"".join((*many[1], *late))
    one.stop()


def test_messages_of_strangers_stop_nothing(worker: Callable[..., Worker], server: NatsServer):
    one = worker()
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)

    async def write() -> None:
        client = await nats.connect(server.url)
        for subject, data in (
            ("observer.record.beside", b"no json"),
            ("observer.record.part.1", b'{"decided":[[{"trace_id":"no id"},"A"]]}'),
            ("observer.record.beside", b"[]"),
            ("observer.spans.1", b"no entry"),
        ):
            await client.jetstream().publish(subject, data)
        await client.close()

    asyncio.run(write())
    traces = [new_trace(2) for _ in range(20)]
    one.send(*traces)
    wait_until(lambda: len(one.decisions()) == 20, seconds=60)
    two = worker()  # which reads the log from its beginning
    assert two.decisions() == one.decisions()
    one.stop()
    two.stop()


def test_a_changed_lease_is_put_in_force_for_all(worker: Callable[..., Worker], server: NatsServer):
    """Workers that renew more seldom than leases run out would take each other's parts, and their own, for ever."""
    buffer = {"kind": "nats", "url": server.url, "parts": PARTS, "max_bytes": "200MiB"}
    one = worker(buffer=buffer | {"lease": "6s"})
    leases = one.buffer._leases
    assert leases is not None
    for seconds in (20, 3):
        two = worker(buffer=buffer | {"lease": f"{seconds}s"})
        wait_until(lambda seconds=seconds: leases._lasts == seconds, seconds=60)
        two.stop()
    one.stop()


@pytest.mark.parametrize(
    ("config", "url", "options", "says"),
    [
        ("max_payload: 4096", "nats://{}", {}, "takes messages of 4096 bytes; set max_payload"),
        ("", "tls://{}", {}, "the server does not speak TLS"),
        (
            "authorization: {user: a, password: b}",
            "nats://a:secret@{}",
            {},
            "(Violation|reset by peer).*mend buffer.url",
        ),
        ("", "nats://{}", {"max_bytes": 1 << 60}, "lower buffer.max_bytes"),
        ("", "nats://{}", {"credentials": Path("/nowhere/user.creds")}, "No such file.*mend buffer.credentials"),
        ("", "nats://{}", {"credentials": Path(__file__)}, "is no .creds file"),
    ],
)
def test_what_cannot_work_is_said_at_start(tmp_path: Path, config: str, url: str, options: dict, says: str):
    server = NatsServer(tmp_path)
    server._config.write_text(f"{server._config.read_text()}\n{config}")
    server.start()
    try:
        with pytest.raises(InputError, match=says) as refused:
            NatsLink(LinkOptions(url.format(server.url.removeprefix("nats://")), **options))
        assert "secret" not in str(refused.value)
    finally:
        server.stop()


def test_pieces_of_another_size_are_not_taken_for_the_rest(worker: Callable[..., Worker], monkeypatch):
    """A request of which a piece got through comes again, when the server takes larger messages."""
    one = worker()
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    request = make_request(new_trace(2), question="x" * 1_500_000)
    received = Received(1, tuple(cut(request, request.SerializeToString()).pieces))
    link = one.buffer._link
    publish = link.publish

    async def first_piece_only(subject: str, payload: bytes, *, message_id: str, **conditions: Any) -> int:
        if not message_id.endswith(".0"):
            raise LinkError("no answer")
        return await publish(subject, payload, message_id=message_id, **conditions)

    with monkeypatch.context() as smaller, pytest.raises(BufferUnavailableError):
        smaller.setattr(NatsLink, "max_payload", 100_000)
        smaller.setattr(link, "publish", first_piece_only)
        one.append(received)
    one.append(received)
    wait_until(lambda: len(one.decisions()) == 1, seconds=60)
    one.stop()


def test_who_stops_without_a_server_stops(tmp_path: Path, server: NatsServer):
    one = Bare(tmp_path / "one", server.url)
    server.stop(signal.SIGKILL)
    wait_until(lambda: not one.link.connected)
    with pytest.raises(LinkError):
        one.link.call(one.link.publish(one.link.beside_subject, b"{}", message_id="a"))
    one.close()
    assert not one.link._thread.is_alive()


def test_who_stops_gives_its_parts_up_before_it_waits_for_its_back_ends(worker: Callable[..., Worker], monkeypatch):
    one = worker(exporters=[{"name": "slow", "endpoint": "http://127.0.0.1:9/v1/traces"}])
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    leases = one.buffer._leases
    assert leases is not None
    held: list[dict[int, int]] = []
    monkeypatch.setattr(one.app.exporters[0], "stop", lambda timeout: held.append(dict(leases._owned)))
    one.stop()
    assert held == [{}]


def test_all_parts_are_taken_at_once(worker: Callable[..., Worker], server: NatsServer):
    """More than the event loop's pool has threads."""
    one = worker(buffer={"kind": "nats", "url": server.url, "parts": 64, "max_bytes": "200MiB"})
    one.send(*(new_trace(2) for _ in range(100)))
    wait_until(lambda: len(one.decisions()) == 100, seconds=12)  # less than a view is waited for
    one.stop()


@pytest.mark.parametrize("beyond", [False, True])
def test_a_view_that_is_ahead_of_a_log_that_lost_its_end_is_made_anew(
    tmp_path: Path, server: NatsServer, *, beyond: bool
):
    """As after a power cut of the server: the numbers of what was lost are given again."""

    def decide(one: Bare, count: int) -> set[str]:
        one.own(0)
        ids = [of_part(one.link, 0) for _ in range(count)]
        assert None not in [one.record.add([(decision(trace_id), b"a" * 8)])[0] for trace_id in ids]
        return {trace_id.hex() for trace_id in ids}

    def known(one: Bare) -> set[str]:
        return {found.trace_id for found in one.record.find({}, limit=100)[0]}

    files, copy = tmp_path / "nats" / "js", tmp_path / "copy"
    old = Bare(tmp_path / "old", server.url)
    first = decide(old, 1)
    server.stop()
    shutil.copytree(files, copy)
    server.start()
    wait_until(lambda: old.link.connected)
    lost = decide(old, 5)
    if beyond:
        old.close()
    server.stop(signal.SIGKILL)
    shutil.rmtree(files)
    copy.rename(files)
    server.start()
    other = Bare(tmp_path / "other", server.url)
    if not beyond:
        wait_until(lambda: old.link.connected)
    again = decide(other, 9 if beyond else 2)
    if beyond:
        old = Bare(tmp_path / "old", server.url)
    wait_until(lambda: known(old) == first | again, seconds=60)
    assert not lost & known(old)
    assert old.record.count() == len(first | again)
    assert decide(old, 1) <= known(old)
    for one in (old, other):
        one.close()
