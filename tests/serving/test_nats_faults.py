"""`buffer: nats` where something goes wrong at the wrong moment: what it must neither lose nor decide twice."""

import asyncio
import signal
import time
from collections.abc import Callable

import nats
from nats_server import NatsServer, needs_nats
from serving.harness import make_request, new_trace, wait_until
from serving.nats_workers import PARTS, Worker

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
