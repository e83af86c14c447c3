"""What met a fault of ours on its way out: kept on disk as it came, so that what is behind it goes on.

The decision stands on record and in the spool; back ends have not heard of the trace, or of its late spans. Whoever
mends the fault sends the file to a back end (`curl -H 'content-type: application/x-protobuf' --data-binary @FILE` to
its `/v1/traces`). Files go with those of the spool, after `retention.spool`.
"""

import hashlib
from pathlib import Path

from observer_core.files import remove_unfinished, write_whole
from observer_serving.candidate import Candidate
from observer_serving.receive.wire import Piece

UNDELIVERABLE_FOLDER = "undeliverable"


class Undeliverable:
    """One file per trace, and per piece of late spans, in a folder that is made for the first: OTLP (`.pb`) as
    received, or the posted JSON."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        remove_unfinished(folder)

    def put(self, candidate: Candidate) -> Path:
        """Write a trace down, on disk when this returns.

        Raises:
            OSError, ObserverError: the disk refuses.
        """
        data = b"".join(candidate.pieces)  # messages in a row are one message that has the spans of all
        return self._write(f"{candidate.trace_id}.{'json' if candidate.is_json else 'pb'}", data)

    def put_late(self, piece: Piece) -> Path:
        """Write late spans down; the same ones again are the same file. Raises as `put`."""
        return self._write(f"{piece.trace_id.hex()}.late-{hashlib.sha256(piece.data).hexdigest()[:12]}.pb", piece.data)

    def count(self) -> int:
        """How many files there are."""
        return len(self._files("*"))

    def erase(self, trace_id: str) -> int:
        """Remove a trace (hex); how many files it had."""
        files = self._files(f"{trace_id}.*")
        for file in files:
            file.unlink()
        return len(files)

    def remove_before(self, moment: float) -> int:
        """Remove files older than `moment` (UNIX seconds); how many."""
        old = [file for file in self._files("*") if file.stat().st_mtime < moment]
        for file in old:
            file.unlink()
        return len(old)

    def _write(self, name: str, data: bytes) -> Path:
        self._folder.mkdir(exist_ok=True)
        file = self._folder / name
        write_whole(file, data)
        return file

    def _files(self, pattern: str) -> list[Path]:
        return [file for file in self._folder.glob(pattern) if not file.name.startswith(".")]  # those are half written
