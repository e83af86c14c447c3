"""The decision record shared by all workers: a log in JetStream is the truth, SQLite on each replica a view of it.

Every part of the traces has a subject. Its owner writes decisions with the number of the subject's last message as a
condition; whoever takes the part over writes a marker first. So a worker that lost a part without knowing (paused, cut
off) cannot decide any more: its next write is refused, and all it wrote before is seen by the next owner. Every replica
applies all messages in their order, hence knows every decision, under the same row numbers.
"""

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
from nats.errors import Error as NatsError

from observer_core.decisions import Decision
from observer_serving.buffer.nats.again import write_again
from observer_serving.buffer.nats.events import ROW_BITS, as_message, chunks, cut_ids
from observer_serving.buffer.nats.feed import Feed, FeedLostError, holds, record_consumer
from observer_serving.buffer.nats.link import FencedError, LinkError, NatsLink
from observer_serving.buffer.nats.view import View
from observer_serving.buffer.protocol import group_by_part
from observer_serving.buffer.record import SELECT, Recorded, read_decision

log = logging.getLogger(__name__)

_FETCH = 256
_IDLE_SECONDS = 1.0
_RETRY_SECONDS = 0.5
_APPLY_SECONDS = 15.0


def record_file(folder: Path, link: NatsLink) -> Path:
    """The view's file; another one when the streams were made anew."""
    created = link.call(link.stream.stream_info(link.record_stream)).created
    return folder / f"decisions-{link.options.prefix}-{created:%Y%m%d%H%M%S%f}.sqlite"


class ReplicatedRecord(View):
    """Writes go through the log and return once the view has them; reads are the view's."""

    def __init__(self, folder: Path, link: NatsLink) -> None:
        super().__init__(record_file(folder, link))
        self._link = link
        self.on_lost: Callable[[int], None] | None = None
        """Called on the connection's loop with a part that turned out to be another worker's."""
        self._checked = -1  # the connection on which the log was seen to be the one that the view is of
        self._fences: dict[int, int] = {}  # parts that are ours → the number of their last message
        self._written: dict[str, int] = {}  # trace id → row, of an `add` that did not end
        self._closing = False
        # A thread of its own: in the loop's pool, those who wait for the view could leave it none.
        self._applier = ThreadPoolExecutor(1, "observer-view")
        self._following: asyncio.Future[None] = link.call(self._start_following())
        self._await(link.call(link.last_number(link.record_stream)))

    # -- ownership

    def own(self, part: int, last: int) -> None:
        """A part is ours; `last` is the number of the marker that says so, which the view has."""
        self._fences[part] = last

    def disown(self, part: int) -> None:
        """A part is not ours any more."""
        self._fences.pop(part, None)

    async def mark(self, part: int) -> int:
        """Write the marker that makes a part this worker's, wait until the view has it, and return its number."""
        event = orjson.dumps({"owner": self._link.worker})
        last = await self._link.publish(self._link.record_subject(part), event, message_id=secrets.token_hex(12))
        await asyncio.to_thread(self._await, last)
        return last

    # -- the record

    def is_settled(self, recorded: Recorded) -> bool:
        part = self._link.part_of(bytes.fromhex(recorded.decision.trace_id))
        return recorded.row <= self._settled_parts.get(part, 0)

    def add(self, decided: Sequence[tuple[Decision, bytes]]) -> Sequence[int | None]:
        """As the base says.

        Raises:
            ObserverError: NATS did not confirm all of it; call again with the same decisions.
        """
        events: list[list[Any]] = []
        more: list[list[Any]] = []  # ids that do not fit into a decision's message; they go before it
        for decision, span_ids in decided:
            first, *rest = cut_ids(span_ids, self._link.max_payload)
            events.append([decision.to_json(), first, *([len(rest)] if rest else [])])
            more += [[decision.trace_id, number, ids] for number, ids in enumerate(rest)]
        new = [
            place
            for place, (decision, _) in enumerate(decided)
            if decision.trace_id not in self._written and not self.erased(bytes.fromhex(decision.trace_id))
        ]
        places = {
            part: [new[i] for i in some] for part, some in self._by_part([decided[p][0].trace_id for p in new]).items()
        }

        def written(number: int, index: int, place: int) -> None:
            self._written[decided[place][0].trace_id] = number << ROW_BITS | index

        more = [event for event in more if event[0] not in self._written]
        self._write("ids", more, self._by_part([event[0] for event in more]))
        self._write("decided", events, places, written)
        rows = [self._written.pop(decision.trace_id, None) for decision, _ in decided]
        self._await(max((row >> ROW_BITS for row in rows if row is not None), default=0))
        return rows

    def add_late(self, late: Sequence[tuple[Recorded, bytes]]) -> None:
        most = self._link.max_payload
        events = [[recorded.decision.trace_id, some] for recorded, ids in late for some in cut_ids(ids, most)]
        self._write("late", events, self._by_part([trace_id for trace_id, _ in events]))
        self._await_ours()

    def settle(self, delivered: Sequence[tuple[int, str]]) -> None:
        last: dict[int, int] = {}
        for row, trace_id in delivered:
            part = self._link.part_of(bytes.fromhex(trace_id))
            last[part] = max(row, last.get(part, 0))
        parts = list(last)
        self._write("settled", [[part, last[part]] for part in parts], {p: [i] for i, p in enumerate(parts)})

    def set_exported(self, trace_ids: Sequence[str]) -> None:
        self._write_beside("exported", list(trace_ids))

    def add_shadows(self, scores: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        self._write_beside("shadows", [list(score) for score in scores])

    def count(self) -> int:
        return self._count

    def remove_before(self, moment: str, *, limit: int) -> int:
        """As the base says, in this replica's view; the log forgets by itself."""
        with self._writing, self._transaction():
            old = self._old(moment, limit)
            gone = [one for one in old if one[0] <= self._settled_parts.get(self._link.part_of(one[1]), 0)]
            self._remove(gone)
            self._count -= len(gone)
        return len(gone)

    # -- erasing

    def erase(self, trace_id: bytes) -> bool:
        """Have every replica forget a trace but for its id, and the log too; whether this one knew a decision.

        Raises:
            ObserverError: NATS did not confirm it; call again.
        """
        known = self.lookup(trace_id) is not None
        self._erasing.add(trace_id)
        try:
            if not self.erased(trace_id):
                number = self._write_beside("erased", [trace_id.hex()])
                self._await(number)
            self._take_out_of_log(trace_id)
        finally:
            self._erasing.discard(trace_id)
        return known

    def erasing(self) -> list[bytes]:
        return [trace_id for (trace_id,) in self._reader().execute("SELECT trace_id FROM erasing")]

    def finish_erasing(self, trace_id: bytes) -> None:
        with self._writing, self._transaction():
            self._db.execute("DELETE FROM erasing WHERE trace_id = ?", (trace_id,))

    def _take_out_of_log(self, trace_id: bytes) -> None:
        """Write the message with a trace's decision again without it, unless another replica has, and have it
        overwritten; then the view's own files."""
        found = self._reader().execute("SELECT id FROM erasing WHERE trace_id = ?", (trace_id,)).fetchone()
        if found is not None and found[0] is not None:
            work = write_again(self._link, found[0] >> ROW_BITS, trace_id.hex(), self._rows_of)
            self._link.call(work, timeout=None)
        with self._writing:
            self._scrub()

    def _rows_of(self, number: int) -> tuple[int, list[list[Any]]]:
        """What the view holds of message `number`, and up to which message of the log the view is."""
        bounds = number << ROW_BITS, (number + 1) << ROW_BITS
        with self._writing:
            rows = self._db.execute(f"{SELECT}, span_ids FROM decisions WHERE id >= ? AND id < ?", bounds).fetchall()
            return self._applied, [
                [row[0], read_decision(row).to_json(), cut_ids(row[-1], self._link.max_payload)[0]] for row in rows
            ]

    def close(self) -> None:
        self._closing = True
        self._link.call(self._stop_following())
        self._applier.shutdown()
        with self._writing:  # what the follower began goes on, on a thread of its own
            super().close()

    def _reading(self) -> sqlite3.Connection:
        return self._reader()  # the writing connection is the follower's

    def _by_part(self, trace_ids: Sequence[str]) -> dict[int, list[int]]:
        return group_by_part([bytes.fromhex(trace_id) for trace_id in trace_ids], self._link.part_of)

    # -- writing

    def _write(
        self,
        kind: str,
        events: Sequence[Any],
        places: dict[int, list[int]],
        written: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """Write each part's events to its subject, as far as the part is ours.

        Args:
            places: part → its events' places in `events`.
            written: told the message's number, the place in the message and the place in `events`.
        """

        async def write_part(part: int, some: list[int]) -> None:
            for chunk in chunks([orjson.dumps(events[place]) for place in some], self._link.max_payload):
                last = self._fences.get(part)
                if last is None:
                    return
                body = as_message(kind, [data for _, data in chunk])
                try:
                    number = await self._link.publish(
                        self._link.record_subject(part), body, message_id=secrets.token_hex(12), expected=last
                    )
                except FencedError as error:
                    if self._fences.get(part) == last:  # else it was given up meanwhile, and is perhaps ours anew
                        log.warning("part %d went to another worker: %s", part, error)
                        self.disown(part)
                        if self.on_lost is not None:
                            self.on_lost(part)
                    return
                if self._fences.get(part) == last:
                    self._fences[part] = number
                for index, (i, _) in enumerate(chunk):
                    if written is not None:
                        written(number, index, some[i])

        async def write_all() -> None:
            work = [write_part(part, some) for part, some in places.items()]
            results = await asyncio.gather(*work, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

        self._link.call(write_all(), timeout=None)

    def _write_beside(self, kind: str, events: list[Any]) -> int:
        """Write events that belong to no part; returns the number of the last message."""

        async def write() -> int:
            number = 0
            for chunk in chunks([orjson.dumps(event) for event in events], self._link.max_payload):
                body = as_message(kind, [data for _, data in chunk])
                number = await self._link.publish(self._link.beside_subject, body, message_id=secrets.token_hex(12))
            return number

        return self._link.call(write(), timeout=None)

    # -- the view

    def _await_ours(self) -> None:
        self._await(max(self._fences.values(), default=0))

    def _await(self, number: int) -> None:
        """Return when the view has the log's message `number`.

        Raises:
            ObserverError: not in time.
        """

        def has() -> bool:
            return self._applied >= number and self._checked == self._link.generation

        with self._progress:
            if number and not self._progress.wait_for(has, timeout=_APPLY_SECONDS):
                raise LinkError(f"the record's log is at {number}, its view on this replica only at {self._applied}")

    async def _start_following(self) -> "asyncio.Future[None]":
        return asyncio.ensure_future(self._follow())

    async def _stop_following(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing or self._link.closed):
            try:
                await self._check()
                feed = await Feed.open(self._link, self._link.record_stream, record_consumer(self._applied + 1))
                try:
                    while True:
                        messages = await feed.next(_FETCH, seconds=_IDLE_SECONDS)
                        if messages:
                            await loop.run_in_executor(self._applier, self._apply, messages)
                finally:
                    await feed.close()
            except (NatsError, OSError, TimeoutError, FeedLostError, sqlite3.Error) as error:
                if self._link.closed:
                    continue
                log.warning("reading the record's log again: %s", str(error) or type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
        if not self._closing:
            log.error("the connection to NATS was ended for good; restart the service")

    async def _check(self) -> None:
        """Make the view anew where the log has lost messages that the view has; the truth is what the log holds."""
        generation = self._link.generation
        found = self._reader().execute("SELECT message_id FROM applied_id").fetchone()
        if found and not await holds(self._link, self._link.record_stream, self._applied, *found):
            log.error("the record's log has lost its end (a power cut, an old copy); its view is made again")
            await asyncio.get_running_loop().run_in_executor(self._applier, self._start_over)
        with self._progress:
            self._checked = generation
            self._progress.notify_all()
