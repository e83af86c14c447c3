"""The bytes of a log segment: checksummed entries one after the other, found again after a damaged stretch.

Checksums start from a random number that only the segment's name has: a client can send bytes that look like an entry,
and after a power cut in the middle of its request they may be all that is left of it, but it cannot know the number.
"""

import errno
import os
import re
import secrets
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from isal.isal_zlib import crc32

from observer_core.errors import InputError

MAGIC = b"OBSR"
_ENTRY = struct.Struct("<4sII")  # magic, length, crc32 of the payload
HEAD_BYTES = _ENTRY.size
BLOCK = 4096
"""What is written at once ends at a multiple of this, filled up with zeros (`segment_file`)."""


SUFFIX = ".wal"
_NAME = re.compile(rf"([0-9a-f]{{16}})(?:-([0-9a-f]{{8}}))?{re.escape(SUFFIX)}")


def new_name(number: int) -> str:
    """The name of a new segment: its place in the log, and what its checksums start from."""
    return f"{number:016x}-{secrets.randbits(32):08x}{SUFFIX}"


def read_name(path: Path) -> tuple[int, int]:
    """A segment's place in the log and what its checksums start from, 0 in those of older versions.

    Raises:
        InputError: a name that no version gives.
    """
    name = _NAME.fullmatch(path.name)
    if name is None or path.is_dir():
        raise InputError(f"{path} is no segment of the log; move it to another folder")
    return int(name[1], 16), int(name[2] or "0", 16)


def found(folder: Path) -> list[tuple[int, int, Path]]:
    """The segments of a log, oldest first, each after what `read_name` tells of it.

    Raises:
        InputError: a file that is no segment, or a second one for a place.
    """
    segments = sorted((*read_name(path), path) for path in folder.glob(f"*{SUFFIX}"))
    for (number, _, path), (following, _, other) in pairwise(segments):
        if number == following:
            raise InputError(f"{path} and {other.name} have one number; move the one that is a copy to another folder")
    return segments


def payloads(data: bytes, seed: int) -> Iterator[bytes]:
    """The entries of a segment that are whole."""
    return (payload for _, _, payload in stretches(data, seed) if payload is not None)


def stretches(data: bytes, seed: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Where every entry of a segment begins and ends, and its payload; `None` for a damaged stretch between two."""
    position = 0
    while position < len(data):
        payload = _entry_at(data, position, seed)
        if payload is not None:
            stop = position + _ENTRY.size + len(payload)
            yield position, stop, payload
            position = _after_padding(data, stop)
            continue
        resume = data.find(MAGIC, position + 1)
        while resume != -1 and _entry_at(data, resume, seed) is None:
            resume = data.find(MAGIC, resume + 1)
        stop = len(data) if resume == -1 else resume
        yield position, stop, None
        position = stop


def frame(buffer: memoryview, parts: list[bytes], size: int, seed: int) -> None:
    """Write an entry around a payload of `size` bytes, given in parts, to the beginning of `buffer`.

    The checksum is of the payload in one piece there: part by part, taking it would let go of the interpreter for every
    part, and wait to get it back.
    """
    place = _ENTRY.size
    for part in parts:
        buffer[place : place + len(part)] = part
        place += len(part)
    _ENTRY.pack_into(buffer, 0, MAGIC, size, crc32(buffer[_ENTRY.size : place], seed))


def framed(parts: list[bytes], seed: int) -> list[bytes]:
    """An entry around a payload given in parts."""
    crc = seed
    for part in parts:
        crc = crc32(part, crc)
    return [_ENTRY.pack(MAGIC, sum(map(len, parts)), crc), *parts]


_RESERVE_BYTES = 256 << 20
_RESERVE_SHARE = 20


def leave_room(folder: Path, size: int) -> None:
    """See that `size` more bytes of the log leave room beside it: without any no decision can be recorded, nothing can
    be handed on, and the log is never emptied.

    Raises:
        OSError: less than 256 MiB would be free, or a twentieth of a small disk.
    """
    disk = os.statvfs(folder)
    reserve = min(_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // _RESERVE_SHARE)
    if disk.f_bavail * disk.f_frsize - size < reserve:
        raise OSError(errno.ENOSPC, f"less than {reserve >> 20} MiB would be free, which decisions need")


def takes_data(folder: Path) -> bool:
    """Whether a block can be written and synced there now."""
    file = folder / "probe"
    try:
        leave_room(folder, BLOCK)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            file.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _after_padding(data: bytes, position: int) -> int:
    """Where the next entry may begin: past the zeros that fill the block up, if there are any."""
    end = min(position + -position % BLOCK, len(data))
    return position if any(data[position:end]) else end


def _entry_at(data: bytes, position: int, seed: int) -> bytes | None:
    """The payload of the entry that begins here, if there is a whole one."""
    if len(data) - position < _ENTRY.size:
        return None
    magic, length, crc = _ENTRY.unpack_from(data, position)
    start = position + _ENTRY.size
    if magic != MAGIC or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if crc32(payload, seed) == crc else None
