"""A decision taken out of the record's log: the rest of its message is written again, then the message overwritten."""

import asyncio
import random
import secrets
from collections.abc import Callable
from typing import Any

import orjson
from nats.js.errors import NotFoundError

from observer_serving.buffer.nats.feed import delete
from observer_serving.buffer.nats.link import FencedError, LinkError, NatsLink

_ATTEMPTS, _ATTEMPT_SECONDS = 100, 0.05


async def write_again(
    link: NatsLink, number: int, trace_id: str, rows_of: Callable[[int], tuple[int, list[list[Any]]]]
) -> None:
    """Take a trace (hex) out of what was first written as the log's message `number`.

    The other decisions go into a new message as they are now, under their rows: whoever reads the log from its
    beginning has missed what was said of them before. The condition on the log's last message makes sure that the view
    this is taken from had heard it all; on a busy log that takes a few attempts. Harmless to repeat, and on several
    replicas.

    Args:
        rows_of: up to which message the view is, and its rows of message `number` as the log writes them.

    Raises:
        LinkError: something was written to the log at every attempt.
    """
    subject = link.again_subject(number)
    for _ in range(_ATTEMPTS):
        holder, data = await _holder(link, number, subject)
        if holder is None or trace_id.encode() not in data:
            return
        last, rows = await asyncio.to_thread(rows_of, number)
        try:
            if rows:
                body = b'{"again":%s}' % orjson.dumps(rows)
                await link.publish(subject, body, message_id=secrets.token_hex(12), expected_in_stream=last)
            await delete(link, link.record_stream, holder)
            return
        except FencedError:
            await asyncio.sleep(random.uniform(0, _ATTEMPT_SECONDS))
    raise LinkError("the record's log is too busy to take a trace out of it; erase it again")


async def _holder(link: NatsLink, number: int, subject: str) -> tuple[int | None, bytes]:
    """The message that holds the decisions first written as message `number`, if it has not expired."""
    places: tuple[tuple[int | None, str | None], ...] = ((None, subject), (number, None))
    for place, on in places:
        try:
            found = await link.stream.get_msg(link.record_stream, seq=place, subject=on)
            return found.seq, found.data or b""
        except NotFoundError:
            continue
    return None, b""
