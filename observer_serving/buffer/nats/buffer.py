"""The buffer on NATS JetStream: receivers publish, workers take, nothing is deleted before it is dealt with.

A request becomes one message per part of the traces it holds (several where it is larger than a message may be), and is
acknowledged once JetStream has confirmed all of them. Each part has one owner at a time, who alone reads it and decides
its traces. A message stays in the stream until everything in it is settled; then it is acknowledged and gone. So what a
new owner finds in the stream is what the last one had open, like the write-ahead log after a restart.
"""

import asyncio
import hashlib
import itertools
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from observer_core.errors import ObserverError
from observer_serving.buffer.nats.feed import Feed, delete, messages, part_consumer
from observer_serving.buffer.nats.leases import Leases
from observer_serving.buffer.nats.link import LinkError, NatsLink
from observer_serving.buffer.nats.record import ReplicatedRecord
from observer_serving.buffer.protocol import BufferUnavailableError, Damage, Intake, Logged, group_by_part
from observer_serving.buffer.received import Received

log = logging.getLogger(__name__)

_FETCH = 32
_IDLE_SECONDS = 1.0
_UNREADABLE = (struct.error, ValueError, IndexError, KeyError)
_BUSY_SECONDS = 0.05
_INCOMPLETE_SECONDS = 900.0
"""How long pieces of a message wait for their rest, whose sender was told to come back long ago. Much longer than
JetStream remembers message ids, or a piece sent again could be taken for one that is still there."""


@dataclass(slots=True)
class _Held:
    """A message that is not dealt with: where to acknowledge its pieces, and how many of its items are open."""

    part: int
    replies: list[str]
    items: int


@dataclass(slots=True)
class _Partial:
    """Pieces of a message that have come."""

    pieces: dict[int, bytes] = field(default_factory=dict)
    replies: list[str] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)


class NatsBuffer:
    """See the module; implements `Buffer`.

    Args:
        works: whether this process also decides, or only receives.
        max_backlog: bytes the engine may have before no more is taken out.
        max_waiting: bytes that may wait for JetStream's confirmation before `append` refuses.
    """

    shared = True

    def __init__(
        self,
        link: NatsLink,
        record: ReplicatedRecord,
        intake: Callable[[], Intake],
        *,
        works: bool,
        max_backlog: int,
        max_waiting: int,
    ) -> None:
        self._link = link
        self._record = record
        self._intake = intake
        self._max_backlog = max_backlog
        self._max_waiting = max_waiting
        self._waiting = 0
        # By numbers of our own, new each time a part is read: what was released under an old one counts no more.
        self._held: dict[int, _Held] = {}
        self._next_held = itertools.count(1)
        self._released: deque[tuple[int, int]] = deque()
        self._acknowledging = False
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._stopping = False
        self._leases = Leases(link, self._take, self._give) if works else None
        record.on_lost = self._lost
        self._size = self._messages = 0
        self.damage: list[Damage] = []
        self.failure: str | None = None

    @property
    def size(self) -> int:
        """Bytes in the stream, of all replicas together; as last asked."""
        return self._size

    @property
    def segments(self) -> int:
        return self._messages

    @property
    def parts(self) -> list[int]:
        """The parts this process decides."""
        return sorted(self._serving)

    @property
    def left(self) -> int:
        return 0

    def replay(self) -> Iterator[Logged]:
        """Nothing: what is open comes with the parts."""
        return iter(())

    def start(self) -> None:
        self._link.start(self._watch())
        if self._leases is not None:
            self._link.start(self._leases.run())

    def refuses(self) -> str | None:
        if not self._link.connected:
            return "the connection to NATS is down"
        if self._waiting > self._max_waiting:
            return "too much is waiting for NATS"
        return None

    def append(self, received: Received) -> asyncio.Future[None]:
        why = "the service is shutting down" if self._stopping else self.refuses()
        if why is not None:
            raise BufferUnavailableError(why)
        self._waiting += received.size
        return asyncio.get_running_loop().create_task(self._append(received))

    async def _append(self, received: Received) -> None:
        try:
            await self._link.call_async(self._publish(received))
        except (LinkError, NatsError) as error:
            self.failure = str(error)
            raise BufferUnavailableError(self.failure) from None
        finally:
            self._waiting -= received.size
        self.failure = None

    def release(self, segment: int, items: int = 1) -> None:
        self._released.append((segment, items))
        if not self._acknowledging:
            self._acknowledging = True
            self._link.start(self._acknowledge())

    def erase(self, trace_id: bytes) -> int:
        return self._link.call(self._erase(trace_id), timeout=None)

    def flush(self) -> None:
        """Take nothing in and nothing out any more; the parts stay this worker's until `close`."""
        if not self._stopping:
            self._stopping = True
            self._link.call(self._stop_serving())

    def close(self) -> None:
        self.flush()
        if self._leases is not None:
            self._link.call(self._leases.release_all())
        self._link.call(self._acknowledge())

    # -- receiving

    async def _publish(self, received: Received) -> None:
        groups = group_by_part([item.trace_id for item in received.items], self._link.part_of)
        messages: list[tuple[str, bytes, str]] = []
        most = self._link.max_payload - _PIECE.size
        for part, places in groups.items():
            head, *rest = Received(received.received_ns, tuple(received.items[i] for i in places)).encode()
            body = b"".join(rest)
            # The same spans sent again have the same id, so that JetStream itself drops what it has already; in other
            # pieces they have another.
            name = hashlib.blake2b(body, digest_size=16, person=b"%d" % most).hexdigest()
            subject = self._link.spans_subject(part)
            pieces = _split(head + body, most)
            messages += [
                (subject, _PIECE.pack(bytes.fromhex(name), number, len(pieces)) + piece, f"{name}.{number}")
                for number, piece in enumerate(pieces)
            ]
        work = [self._link.publish(subject, data, message_id=name) for subject, data, name in messages]
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _erase(self, trace_id: bytes) -> int:
        """Write the messages that hold a trace again without it, then have the server overwrite them.

        What else was in them comes to its owner a second time, which changes nothing: spans are known by their ids.
        """
        erased = 0
        wholes: dict[bytes, dict[int, tuple[int, bytes]]] = {}
        part = self._link.part_of(trace_id)
        async for number, data in messages(self._link, self._link.spans_stream, self._link.spans_subject(part)):
            try:
                name, index, count = _PIECE.unpack_from(data)
                pieces = wholes.setdefault(name, {})
                pieces[index] = number, data[_PIECE.size :]
                if len(pieces) < count:
                    continue
                del wholes[name]
                received = Received.decode(b"".join(pieces[i][1] for i in range(count)))
            except _UNREADABLE:  # none of ours; whoever serves the part takes it out
                continue
            kept = tuple(item for item in received.items if item.trace_id != trace_id)
            if len(kept) == len(received.items):
                continue
            if kept:
                await self._publish(Received(received.received_ns, kept))
            for place, _ in pieces.values():
                await delete(self._link, self._link.spans_stream, place)
            erased += len(received.items) - len(kept)
        return erased

    # -- working

    def _take(self, part: int) -> None:
        """A part is ours: serve it."""
        if not self._stopping and part not in self._serving:
            self._serving[part] = asyncio.create_task(self._serve(part))

    async def _give(self, part: int) -> None:
        """A part is no longer ours: stop serving it."""
        task = self._serving.get(part)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _lost(self, part: int) -> None:
        """The record found out that a part is another worker's; on the connection's loop."""
        task = self._serving.get(part)
        if task is not None:
            task.cancel()

    async def _serve(self, part: int) -> None:
        """Read one part until it is lost; the leases start it again if it is still ours."""
        try:
            marker = await self._record.mark(part)
            self._record.own(part, marker)
            feed = await self._open_feed(part, marker)
            try:
                await self._read(part, feed)
            finally:
                await feed.close()
        except (NatsError, OSError, TimeoutError, ObserverError) as error:
            log.warning("part %d is read again: %s", part, str(error) or type(error).__name__)
        finally:
            if not self._stopping:  # else what is in flight is decided still
                self._forget(part)
            self._serving.pop(part, None)

    async def _open_feed(self, part: int, marker: int) -> Feed:
        """A feed over a new consumer, in place of the last owner's, whose acknowledgements then count no more."""
        for old in await self._link.consumer_names(self._link.spans_stream):
            if old.startswith(f"part{part}-"):
                await self._link.stream.delete_consumer(self._link.spans_stream, old)
        config = part_consumer(f"part{part}-{marker}", self._link.spans_subject(part))
        return await Feed.open(self._link, self._link.spans_stream, config)

    async def _read(self, part: int, feed: Feed) -> None:
        """First what the last owner had, then what comes."""
        intake = self._intake()
        partial: dict[bytes, _Partial] = {}
        last, number = await self._link.last_number(self._link.spans_stream), 0
        while number < last and (backlog := await feed.pending()) > 0:
            messages = await self._next(feed, min(_FETCH, backlog))
            intake.accept_again(self._entries(part, messages, partial), part)
            number = messages[-1].metadata.sequence.stream if messages else number
        intake.resumed(part)
        while True:
            intake.accept(self._entries(part, await self._next(feed, _FETCH), partial))
            await self._drop_incomplete(partial)

    async def _next(self, feed: Feed, most: int) -> list[Any]:
        """Messages, once the engine has room for them."""
        while self._intake().backlog_bytes > self._max_backlog:
            await asyncio.sleep(_BUSY_SECONDS)
        return await feed.next(most, seconds=_IDLE_SECONDS)

    def _entries(self, part: int, messages: list[Any], partial: dict[bytes, _Partial]) -> list[Logged]:
        return [entry for message in messages if (entry := self._entry(part, message, partial)) is not None]

    def _entry(self, part: int, message: Any, partial: dict[bytes, _Partial]) -> Logged | None:
        """The entry that a message completes, if it does."""
        number = message.metadata.sequence.stream
        try:
            name, index, count = _PIECE.unpack_from(message.data)
            data = message.data[_PIECE.size :]
            replies = [message.reply]
            if count > 1:
                whole = partial.setdefault(name, _Partial())
                whole.pieces[index] = data
                whole.replies.append(message.reply)
                if len(whole.pieces) < count:
                    return None
                del partial[name]
                data = b"".join(whole.pieces[i] for i in range(count))
                replies = whole.replies
            received = Received.decode(data)
        except _UNREADABLE as error:
            log.error("message %d of %s is none of ours, it is left out: %s", number, self._link.spans_stream, error)
            self._link.start(self._acknowledge_now([message.reply]))
            return None
        held = next(self._next_held)
        self._held[held] = _Held(part, replies, len(received.items))
        return Logged(held, received)

    async def _drop_incomplete(self, partial: dict[bytes, _Partial]) -> None:
        now = time.monotonic()
        for name in [name for name, one in partial.items() if one.since + _INCOMPLETE_SECONDS <= now]:
            log.info("dropping pieces of a message whose sender was never told that it arrived")
            await self._acknowledge_now(partial.pop(name).replies)

    def _forget(self, part: int) -> None:
        self._record.disown(part)
        self._held = {key: held for key, held in self._held.items() if held.part != part}
        self._intake().forget(part, lambda trace_id: self._link.part_of(trace_id) == part)

    async def _stop_serving(self) -> None:
        tasks = list(self._serving.values())
        if self._leases is not None:
            self._leases.pause()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- acknowledging

    async def _acknowledge(self) -> None:
        self._acknowledging = False
        replies: list[str] = []
        while self._released:
            number, items = self._released.popleft()
            held = self._held.get(number)
            if held is not None:
                held.items -= items
                if held.items <= 0:
                    del self._held[number]
                    replies += held.replies
        await self._acknowledge_now(replies)

    async def _acknowledge_now(self, replies: list[str]) -> None:
        try:
            for reply in replies:
                await self._link.acknowledge(reply)
        except NatsError as error:  # they come again and are known then
            log.warning("cannot acknowledge: %s", str(error) or type(error).__name__)

    async def _watch(self) -> None:
        """Keep `size` up to date."""
        while not (self._stopping or self._link.closed):
            try:
                state = (await self._link.stream.stream_info(self._link.spans_stream)).state
                self._size, self._messages = state.bytes, state.messages
            except (NatsError, TimeoutError, NotFoundError) as error:
                log.debug("no figures of the stream: %s", error)
            await asyncio.sleep(_IDLE_SECONDS)


_PIECE = struct.Struct("<16sII")  # name of the whole, number of the piece, how many


def _split(data: bytes, most: int) -> list[bytes]:
    return [data[i : i + most] for i in range(0, len(data), most)]
