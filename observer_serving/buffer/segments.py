"""The bytes of a log segment: checksummed entries one after the other, found again after a damaged stretch."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from isal.isal_zlib import crc32

MAGIC = b"OBSR"
ENTRY = struct.Struct("<4sII")  # magic, length, crc32 of the payload
_IOV_MAX = 1024  # Linux and macOS


def payloads(data: bytes) -> Iterator[bytes]:
    """The entries of a segment that are whole."""
    position = 0
    while position < len(data):
        payload = entry_at(data, position)
        if payload is None:
            position = data.find(MAGIC, position + 1)
            if position < 0:
                return
        else:
            yield payload
            position += ENTRY.size + len(payload)


def framed(parts: list[bytes]) -> list[bytes]:
    """An entry around a payload given in parts."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return [ENTRY.pack(MAGIC, sum(map(len, parts)), crc), *parts]


def write_all(descriptor: int, parts: list[bytes]) -> int:
    """Write the parts without joining them first; returns how many bytes."""
    total = 0
    for first in range(0, len(parts), _IOV_MAX):
        chunk = parts[first : first + _IOV_MAX]
        size = sum(map(len, chunk))
        written = os.writev(descriptor, chunk)
        if written < size:  # a disk about to fill up, or a signal
            rest = memoryview(b"".join(chunk))[written:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        total += size
    return total


def entry_at(data: bytes, position: int) -> bytes | None:
    """The payload of the entry that begins here, if there is a whole one."""
    if len(data) - position < ENTRY.size:
        return None
    magic, length, crc = ENTRY.unpack_from(data, position)
    start = position + ENTRY.size
    if magic != MAGIC or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if crc32(payload) == crc else None


def takes_data(folder: Path) -> bool:
    """Whether a block can be written and synced there now."""
    file = folder / "probe"
    try:
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
