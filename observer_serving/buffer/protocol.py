"""What stands between the acknowledgement and the decision; kept by a log on disk or by NATS JetStream."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from observer_core.errors import ObserverError
from observer_serving.buffer.received import Received


class BufferUnavailableError(ObserverError):
    """The buffer cannot take more now (disk full, too much waiting): the client should come back."""


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry that is safe, and what it is released by: a segment of the log, or a number the buffer gave it."""

    segment: int
    received: Received


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that could not be read back."""

    file: Path
    offset: int
    size: int


class Intake(Protocol):
    """Who takes entries out of a buffer: the engine. Everything may be called from any thread and returns at once."""

    @property
    def backlog_bytes(self) -> int:
        """Bytes taken in and not dealt with; a buffer that can wait does so while this is large."""
        ...

    def accept(self, entries: list[Logged]) -> None:
        """Entries that were just received."""
        ...

    def accept_again(self, entries: list[Logged], part: int) -> None:
        """Entries that were given to an engine before: this one before a restart, or the last owner of a part."""
        ...

    def resumed(self, part: int) -> object:
        """The last entry of `accept_again` has come."""
        ...

    def forget(self, part: int, covers: Callable[[bytes], bool]) -> None:
        """Another engine goes on with the traces whose id `covers` says yes to."""
        ...


class Buffer(Protocol):
    """Call `replay` once, then `start`; `append` from an event loop, `release` from any thread."""

    shared: bool
    """Whether another process takes over what this one leaves open when it stops."""
    damage: list[Damage]
    """What `replay` could not read."""
    failure: str | None
    """Why the last write failed; `None` once one has succeeded again."""

    @property
    def size(self) -> int:
        """Bytes held."""
        ...

    @property
    def segments(self) -> int:
        """Segments or messages held."""
        ...

    @property
    def left(self) -> int:
        """Bytes that `replay` will read."""
        ...

    def replay(self) -> Iterator[Logged]:
        """Every entry that this process alone has to go on with."""
        ...

    def start(self) -> None: ...

    def refuses(self) -> str | None:
        """Why an entry would be refused now, or `None`."""
        ...

    def append(self, received: Received) -> asyncio.Future[None]:
        """Take an entry; the future is done when it is safe.

        Raises:
            BufferUnavailableError: it is not (disk full, over a limit, shutting down), at once or by the future.
        """
        ...

    def release(self, segment: int, items: int = 1) -> None:
        """Say that `items` items of a segment are no longer needed."""
        ...

    def erase(self, trace_id: bytes) -> int:
        """Remove a trace's items from what is held (the engine has let go of them); how many items there were."""
        ...

    def flush(self) -> None:
        """Refuse new entries and wait until those that wait are safe; nothing reaches the intake afterwards."""
        ...

    def close(self) -> None:
        """`flush`, then let go of everything."""
        ...


def group_by_part(trace_ids: Sequence[bytes], part_of: Callable[[bytes], int]) -> dict[int, list[int]]:
    """Part → the places in `trace_ids` that belong to it."""
    out: dict[int, list[int]] = {}
    for place, trace_id in enumerate(trace_ids):
        out.setdefault(part_of(trace_id), []).append(place)
    return out
