"""Who owns which part: leases in a key-value bucket whose entries expire.

A worker keeps its presence and its leases fresh; parts whose lease has expired are free. Each worker aims at an even
share of the parts and gives up what is above it. A lease only says who should own a part: that nobody else can decide
its traces is the record's condition on every write (`ReplicatedRecord`), whatever clocks and networks do.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoKeysError

from observer_serving.buffer.nats.link import NatsLink

log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 4


class Leases:
    """Runs on the connection's loop.

    Args:
        take: called again and again with every part that is this worker's.
        give: called with a part that is not any more; returns when nothing happens with it here any more.
    """

    def __init__(self, link: NatsLink, take: Callable[[int], None], give: Callable[[int], Awaitable[None]]) -> None:
        self._link = link
        self._take = take
        self._give = give
        self._owned: dict[int, int] = {}  # part → revision of its lease
        self._paused = self._closed = False
        self._presence = f"worker.{link.worker}"
        self._lasts = link.options.lease  # seconds; whoever started last said so

    def pause(self) -> None:
        """Keep what is owned, take no more."""
        self._paused = True

    async def run(self) -> None:
        while not (self._closed or self._link.closed):
            try:
                await self._round()
            except (NatsError, OSError, TimeoutError) as error:
                log.warning("cannot renew the leases: %s", str(error) or type(error).__name__)
            await asyncio.sleep(self._lasts / _RENEWALS_PER_LEASE)

    async def release_all(self) -> None:
        """Let others have everything at once."""
        if self._closed:
            return
        self._closed = True
        try:
            for part in list(self._owned):
                await self._let_go(part)
            await self._link.leases.delete(self._presence)
        except (NatsError, OSError, TimeoutError) as error:
            log.warning("the leases run out by themselves: %s", str(error) or type(error).__name__)

    async def _round(self) -> None:
        bucket = self._link.leases
        await bucket.put(self._presence, b"")
        for part in list(self._owned):
            await self._renew(part)
        self._lasts = (await bucket.status()).ttl or self._lasts
        if self._paused:
            return
        try:
            keys = await bucket.keys()
        except NoKeysError:
            keys = []
        workers = sum(key.startswith("worker.") for key in keys)
        share = math.ceil(self._link.options.parts / max(1, workers))
        for part in sorted(self._owned)[share:]:
            await self._let_go(part)
        for part in range(self._link.options.parts):
            if len(self._owned) < share and f"part.{part}" not in keys:
                await self._acquire(part)
        for part in self._owned:
            self._take(part)

    async def _acquire(self, part: int) -> None:
        try:
            self._owned[part] = await self._link.leases.create(f"part.{part}", self._link.worker.encode())
        except KeyWrongLastSequenceError:
            return  # another was faster

    async def _renew(self, part: int) -> None:
        try:
            self._owned[part] = await self._link.leases.update(
                f"part.{part}", self._link.worker.encode(), last=self._owned[part]
            )
        except (KeyWrongLastSequenceError, KeyNotFoundError):
            del self._owned[part]
            log.warning("part %d went to another worker", part)
            await self._give(part)

    async def _let_go(self, part: int) -> None:
        await self._give(part)
        revision = self._owned.pop(part)
        await self._link.leases.delete(f"part.{part}", last=revision)
