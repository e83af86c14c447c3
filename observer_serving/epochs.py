"""The log of a review budget's epochs: an epoch is written down before the first decision under it."""

import os
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote

import orjson

from observer_serving.config import SERVICE

EPOCHS_FILE = "epochs.jsonl"
MAX_EPOCHS_BYTES = 32 << 20
"""A log above this size becomes `….1`, in place of the one before: some 6,000 epochs are kept at least."""
_TAIL_BYTES = 1 << 20  # a line is about 5 KB


class EpochLog(Protocol):
    """The epochs of one scope. A record is that of `BudgetThreshold.to_json`."""

    def last(self) -> dict[str, Any] | None:
        """The last record, to go on from after a restart."""
        ...

    def agree(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write an epoch down, and return the record that holds for it: with replicas, whichever came first.

        Raises:
            OSError | ObserverError: it cannot be written down; nothing may be decided under it.
        """
        ...


class FileEpochs:
    """An append-only file of JSON lines; this process alone writes it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def of(cls, folder: Path, scope: str) -> "FileEpochs":
        """The log of a scope: `epochs.jsonl`, or `epochs-<project>.jsonl`."""
        name = EPOCHS_FILE if scope == SERVICE else f"epochs-{quote(scope, safe='')[:200]}.jsonl"
        return cls(folder / name)

    def last(self) -> dict[str, Any] | None:
        """The last whole line; a torn one at the end (power cut) is passed over.

        Of a log that was moved aside a moment before a crash, the last line is taken from there.
        """
        for file in (self._file, self._aside):
            if file.exists():
                return _last_line(file)
        return None

    def agree(self, record: dict[str, Any]) -> dict[str, Any]:
        if self._file.exists() and self._file.stat().st_size > MAX_EPOCHS_BYTES:
            self._file.replace(self._aside)
        with self._file.open("ab+") as stream:
            if stream.tell() and not _ends_a_line(stream):
                stream.write(b"\n")  # a power cut left half a line; it stays a line of its own
            stream.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        return record

    @property
    def _aside(self) -> Path:
        return self._file.with_name(f"{self._file.name}.1")


def _ends_a_line(stream: BinaryIO) -> bool:
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) == b"\n"


def _last_line(file: Path) -> dict[str, Any] | None:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        lines = stream.read().split(b"\n")
    for line in reversed(lines):
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
    return None
