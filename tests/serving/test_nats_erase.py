"""Erasing and forgetting where several services share a record over a real nats-server."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import nats
import pyarrow.parquet as pq
import pytest
from nats.js.errors import NotFoundError
from nats_server import NatsServer, needs_nats
from serving.harness import make_request, new_trace, wait_until
from serving.nats_workers import PARTS, Bare, Worker, decided_in_log, decision, of_part
from serving.test_redact import files_with

from observer_core.errors import InputError
from observer_core.home import Home
from observer_serving.buffer.nats.link import LinkOptions, NatsLink
from observer_serving.config import Settings
from observer_serving.erase import erase_offline

pytestmark = needs_nats
KEEP = {"policy": {"keep_threshold": 0.0, "hash_key": "test"}}
DOWN = {"exporters": [{"name": "down", "endpoint": "http://127.0.0.1:9/v1/traces"}], "drain": "1s"}


def shared(worker: Callable[..., Worker], **settings) -> tuple[Worker, Worker]:
    """Two workers, each with half of the parts."""
    one, two = worker(**settings), worker(**settings)
    wait_until(lambda: len(one.buffer.parts) == len(two.buffer.parts) == PARTS // 2, seconds=60)
    return one, two


def spooled(home: Path) -> set[str]:
    """The traces in the sealed files of a spool."""
    return {row for path in (home / "spool").glob("*/*.parquet") for row in pq.read_table(path)["trace_id"].to_pylist()}


def queued(home: Path) -> int:
    """Traces that wait for the back end."""
    return len(list((home / "serving" / "export" / "down" / "queue").glob("*.spans")))


def in_stream(url: str, stream: str) -> bytes:
    """Everything a stream holds now."""

    async def read() -> bytes:
        client = await nats.connect(url)
        manager = client.jetstream()
        state = (await manager.stream_info(stream)).state
        out = b""
        for number in range(state.first_seq, state.last_seq + 1):
            try:
                out += (await manager.get_msg(stream, number)).data or b""
            except NotFoundError:
                continue
        await client.close()
        return out

    return asyncio.run(read())


def test_a_decided_trace_goes_from_every_replica_and_from_the_log(worker: Callable[..., Worker], server: NatsServer):
    one, two = shared(worker, **KEEP, **DOWN)
    gone, stays = new_trace(3), [new_trace(2) for _ in range(8)]
    one.send(gone, *stays[:4], attribute="the secret question")
    two.send(*stays[4:], attribute="the other question")
    wait_until(lambda: len(one.decisions()) == len(two.decisions()) == 9, seconds=60)
    other = two if one.part_of(gone[0]) in one.buffer.parts else one
    rest = {trace_id.hex() for trace_id, _ in stays}
    wait_until(lambda: spooled(one.home) | spooled(two.home) == rest | {gone[0].hex()}, seconds=60)
    assert queued(one.home) + queued(two.home) == 9

    erased = other.erase(gone[0])  # by the replica that never had it
    assert (erased.decisions, erased.spool_rows, erased.queued) == (1, 0, 0)
    for each in (one, two):
        wait_until(lambda each=each: not each.app.record.erasing(), seconds=60)
        assert each.decisions().keys() == rest
        assert each.app.record.count() == 8
    assert spooled(one.home) | spooled(two.home) == rest
    assert queued(one.home) + queued(two.home) == 8
    assert sorted(decided_in_log(server.url)) == sorted(rest)
    one.send(gone)  # its client sends it again
    two.send(new_trace(1))
    wait_until(lambda: len(one.decisions()) == len(two.decisions()) == 9, seconds=60)
    assert gone[0].hex() not in one.decisions()
    wait_until(lambda: one.buffer.segments == 0, seconds=60)
    again = one.erase(gone[0])
    assert (again.decisions, again.log_items, again.spool_rows) == (0, 0, 0)

    before = one.app.record.find({}, limit=100)[0]
    third = worker(**KEEP)  # knows only what the log says
    assert third.app.record.find({}, limit=100)[0] == before
    assert third.app.record.erased(gone[0])
    assert not third.app.record.erased(stays[0][0])
    for each in (one, two, third):
        each.stop()


def test_an_open_trace_goes_undecided_and_its_neighbours_in_the_message_do_not(
    worker: Callable[..., Worker], server: NatsServer
):
    slow = {"assembly": {"quiet_period": "60s", "timeout": "120s"}}
    one, two = shared(worker, **KEEP, **slow)
    gone = new_trace(2)
    beside = next(t for t in (new_trace(2) for _ in range(1000)) if one.part_of(t[0]) == one.part_of(gone[0]))
    one.send(gone, beside, attribute="both of them")
    big = new_trace(1)
    one.send(big, attribute="x" * (3 << 20))  # in several messages
    wait_until(lambda: one.app.engine.open_traces + two.app.engine.open_traces == 3)
    assert gone[0] in in_stream(server.url, "observer-spans")
    two.erase(gone[0])
    two.erase(big[0])
    held = in_stream(server.url, "observer-spans")
    assert gone[0] not in held
    assert b"xxx" not in held
    assert beside[0] in held
    assert files_with(server.folder, b"xxxxxxxx") == [], "overwritten on the server's disk, too"
    wait_until(lambda: one.app.engine.open_traces + two.app.engine.open_traces == 1, seconds=60)
    one.stop()
    two.stop()
    three = worker(**KEEP)  # takes over what is open
    wait_until(lambda: list(three.decisions()) == [beside[0].hex()], seconds=60)
    assert three.decisions()[beside[0].hex()].spans == 2
    wait_until(lambda: three.buffer.segments == 0, seconds=60)
    three.stop()


def test_a_worker_that_was_down_erases_when_it_comes_back(worker: Callable[..., Worker], server: NatsServer):
    one = worker(**KEEP, **DOWN)
    wait_until(lambda: len(one.buffer.parts) == PARTS, seconds=60)
    gone, stays = new_trace(2), new_trace(2)
    one.send(gone, stays)
    wait_until(lambda: len(one.decisions()) == 2, seconds=60)
    one.stop()
    assert (spooled(one.home), queued(one.home)) == ({gone[0].hex(), stays[0].hex()}, 2)
    settings = one.settings
    done = erase_offline(settings, Home(server.folder / "elsewhere"), gone[0])  # the command, on another machine
    assert (done.decisions, done.spool_rows) == (1, 0)
    back = worker(home=one.home, **KEEP, **DOWN)
    wait_until(lambda: not back.app.record.erasing(), seconds=60)
    assert (spooled(one.home), queued(one.home)) == ({stays[0].hex()}, 1)
    assert list(back.decisions()) == [stays[0].hex()]
    back.stop()


def test_what_came_between_is_not_lost_with_the_message_written_again(tmp_path: Path, server: NatsServer):
    first = Bare(tmp_path / "first", server.url)
    first.own(0)
    gone, stays, other = (of_part(first.link, 0) for _ in range(3))
    rows = first.record.add([(decision(i), b"a" * 8) for i in (gone, stays, other)])
    recorded = first.record.lookup(stays)
    assert recorded is not None
    first.record.add_late([(recorded, b"b" * 8)])
    first.record.set_exported([stays.hex()])
    first.record.add_shadows([(stays.hex(), "other", {"p_wrong": 0.1})])
    first.record.settle([(rows[2] or 0, other.hex())])
    assert first.record.erase(gone) is True
    assert first.record.erase(other) is True, "out of the message that was written again"
    assert first.record.erase(other) is False
    assert decided_in_log(server.url) == [stays.hex()]
    again = Bare(tmp_path / "again", server.url)
    for record in (first.record, again.record):
        found = record.lookup(stays)
        assert found is not None
        assert (found.row, found.span_ids, found.decision.late_spans) == (rows[1], b"a" * 8 + b"b" * 8, 1)
        assert (found.decision.exported, found.decision.shadow) == (True, {"other": {"p_wrong": 0.1}})
        assert record.is_settled(found)
        assert record.count() == 1
        assert record.decided([gone, other]) == set()
    assert first.record.add([(decision(gone), b"a" * 8)]) == [None], "nobody decides it again"
    for one in (first, again):
        one.close()


def test_old_decisions_go_from_log_and_views_and_an_empty_log_is_no_obstacle(tmp_path: Path, server: NatsServer):
    one = Bare(tmp_path / "one", server.url, record_age=3.0)
    for part in range(PARTS):
        one.own(part)
    old, unsettled = of_part(one.link, 0), of_part(one.link, 1)
    row, _ = one.record.add([(decision(old), b""), (decision(unsettled), b"")])
    one.record.settle([(row or 0, old.hex())])
    wait_until(lambda: one.record.is_settled(one.record.lookup(old)))  # type: ignore[arg-type]
    assert one.record.remove_before("2026-06-01T00:00:00Z", limit=10) == 1, "not what was not delivered"
    assert (one.record.lookup(old), one.record.count()) == (None, 1)
    time.sleep(4)  # the server's clock, not ours
    assert decided_in_log(server.url) == []
    two = Bare(tmp_path / "two", server.url, record_age=7200.0)
    assert two.record.count() == 0
    age = two.link.call(two.link.stream.stream_info(two.link.record_stream)).config.max_age
    assert age == 7200, "the settings' age is put in force on streams that are there"
    for each in (one, two):
        each.close()


def test_the_settings_say_how_long_a_shared_record_is_kept(tmp_path: Path):
    nats_kind = {"buffer": {"kind": "nats", "record_age": "2d"}}
    assert Settings().decisions_kept is None
    assert Settings.model_validate(nats_kind).decisions_kept == 2 * 86_400
    assert Settings.model_validate(nats_kind | {"retention": {"decisions": "1d"}}).decisions_kept == 86_400
    settings = Settings.model_validate({"buffer": {"kind": "nats", "url": "nats://127.0.0.1:1"}})
    with pytest.raises(InputError, match=r"buffer\.url"):
        erase_offline(settings, Home(tmp_path), b"t" * 16)


def test_a_service_over_nats_erases_by_its_api(service, server: NatsServer):
    live = service(buffer={"kind": "nats", "url": server.url, "parts": PARTS, "lease": "3s"}, **KEEP)
    trace_id, span_ids = new_trace(2)
    live.export(make_request((trace_id, span_ids)))
    live.wait_for_decisions(1, seconds=60)
    answer = httpx.delete(f"{live.api}/v1/traces/{trace_id.hex()}", timeout=60)
    assert (answer.status_code, answer.json()["decisions"]) == (200, 1), answer.text
    assert live.decisions() == []


def test_a_link_that_was_closed_for_good_ends_its_loops(tmp_path: Path, server: NatsServer, caplog):
    one = Bare(tmp_path / "one", server.url)
    one.link.call(one.link._client._close(nats.NATS.CLOSED))
    wait_until(lambda: one.record._following.done())
    assert [r.message for r in caplog.records if "restart the service" in r.message]
    one.link.close()
    link = NatsLink(LinkOptions(server.url, parts=PARTS, max_bytes=100 << 20))
    link.close()
