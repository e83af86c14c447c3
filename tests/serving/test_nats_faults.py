"""`buffer: nats` where something goes wrong at the wrong moment: what it must neither lose nor decide twice."""

import signal
import time
from collections.abc import Callable

from nats_server import NatsServer, needs_nats
from serving.harness import make_request, new_trace, wait_until
from serving.nats_workers import PARTS, Worker

from observer_serving.buffer.received import Received
from observer_serving.receive.wire import cut

pytestmark = needs_nats


def test_what_is_open_stays_in_the_stream_when_its_part_is_read_again(worker: Callable[..., Worker], server: NatsServer):
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
