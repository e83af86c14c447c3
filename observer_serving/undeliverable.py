"""Traces whose delivery met a fault of ours: kept on disk as they came, so that the ones behind them go on.

The decision stands on record; back ends and the spool have not heard of the trace. Whoever mends the fault sends the
file to a back end (`curl -H 'content-type: application/x-protobuf' --data-binary @FILE` to its `/v1/traces`).
"""

from pathlib import Path

from observer_core.files import write_whole
from observer_serving.candidate import Candidate

UNDELIVERABLE_FOLDER = "undeliverable"


class Undeliverable:
    """One file per trace in a folder that is made for the first: OTLP (`.pb`) as received, or the posted JSON."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, candidate: Candidate) -> Path:
        """Write a trace down, on disk when this returns.

        Raises:
            OSError: the disk refuses.
        """
        self._folder.mkdir(exist_ok=True)
        file = self._folder / f"{candidate.trace_id}.{'json' if candidate.is_json else 'pb'}"
        write_whole(file, b"".join(candidate.pieces))  # messages in a row are one message that has the spans of all
        return file

    def erase(self, trace_id: str) -> int:
        """Remove a trace (hex); how many files it had."""
        files = list(self._folder.glob(f"{trace_id}.*"))
        for file in files:
            file.unlink()
        return len(files)
