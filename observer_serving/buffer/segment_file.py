"""Appends to a segment's file, past the page cache where the file system lets it.

What the log holds is read back only after a crash. Handed to the disk directly it costs a copy into one buffer that
stays, not fresh pages of the page cache for every byte, and pushes nothing out of it that is read. The disk takes whole
blocks only, so what is written at once is filled up with zeros, which readers pass over.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from observer_serving.buffer.segments import BLOCK, HEAD_BYTES, frame, framed, read_name

BUFFER_BYTES = 4 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)  # macOS has none
_HUGE_PAGE = 2 << 20


def write_buffer() -> memoryview:
    """Memory that the disk can be given directly, for all segments of a log, one after the other.

    In huge pages where the system has them: the kernel then pins two pages a write and not a thousand.
    """
    memory = mmap.mmap(-1, BUFFER_BYTES + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:BUFFER_BYTES]


class SegmentFile:
    """A new file at `path`.

    Args:
        buffer: a `write_buffer`.
        direct: whether to go past the page cache; without a sync after every write that would only be slower.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, buffer: memoryview, *, direct: bool) -> None:
        self._buffer = buffer
        _, self._seed = read_name(path)
        self._direct = direct and _DIRECT != 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if self._direct:
            try:
                self.descriptor = os.open(path, flags | os.O_EXCL | _DIRECT, 0o600)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            self._direct = False
            path.unlink(missing_ok=True)  # some kernels make the file before they refuse the flag
        self.descriptor = os.open(path, flags | os.O_EXCL, 0o600)

    def append(self, payloads: Iterable[list[bytes]]) -> int:
        """Write an entry for every payload, given in parts, up to the end of a block; returns how many bytes that were.

        Raises:
            OSError: the disk took none or only some of it.
        """
        buffer = self._buffer
        filled = written = 0
        for parts in payloads:
            size = sum(map(len, parts))
            if HEAD_BYTES + size <= len(buffer) - filled:
                frame(buffer[filled:], parts, size, self._seed)
                filled += HEAD_BYTES + size
                continue
            for part in framed(parts, self._seed):
                rest = memoryview(part)
                while len(rest) > (room := len(buffer) - filled):
                    buffer[filled:] = rest[:room]
                    written += self._write(buffer)
                    rest, filled = rest[room:], 0
                buffer[filled : filled + len(rest)] = rest
                filled += len(rest)
        missing = -filled % BLOCK
        buffer[filled : filled + missing] = bytes(missing)
        return written + self._write(buffer[: filled + missing])

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def close(self) -> None:
        os.close(self.descriptor)

    def _write(self, data: memoryview) -> int:
        rest = data
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._go_through_the_page_cache()  # this disk wants larger blocks, or took half of one
        return len(data)

    def _go_through_the_page_cache(self) -> None:
        self._direct = False
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
