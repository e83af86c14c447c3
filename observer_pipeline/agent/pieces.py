"""The work folder of a batch: its runs in pieces, each written whole, so that a killed batch can go on.

A piece is done once its traces are written and, with an endpoint, its spans accepted there. Its spans are kept until
then, so whatever has to be sent again is the same spans, never a second run.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_core.errors import InputError, ObserverError
from observer_core.files import write_whole
from observer_core.traces.otlp import read_otlp_file, write_otlp_file
from observer_core.traces.trace import Trace
from observer_pipeline.agent.labeled_run import LedgerEntry
from observer_pipeline.agent.options import GenerateOptions

PIECE = 10
"""Runs in a piece: what a kill costs at most, per worker."""
_PLAN = "batch.json"


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one batch.

    Attributes:
        folder: where they lie.
        count: how many there are.
        spans: whether their spans are kept at the end.
    """

    folder: Path
    count: int
    spans: bool

    @classmethod
    @contextlib.contextmanager
    def open(cls, folder: Path, options: GenerateOptions, *, spans: bool) -> Iterator["Pieces"]:
        """The folder of this batch, new or begun earlier, held against other processes meanwhile.

        Raises:
            InputError: the folder holds another batch, one that is being worked on, or something else.
            ObserverError: the folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise ObserverError(f"cannot write {folder}: {error.strerror}; choose another place") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"another process works on {folder}; wait for it or choose another folder") from error
            plan = json.dumps(options.to_json() | {"spans": spans, "piece": PIECE}, indent=1, sort_keys=True)
            file = folder / _PLAN
            if file.exists() and file.read_text("utf-8") != plan:
                raise InputError(f"{folder} holds a batch with other options; remove it or choose another folder")
            if not file.exists() and any(folder.iterdir()):  # the folder is removed in the end
                raise InputError(f"{folder} holds something else than a batch; move it or choose another folder")
            write_whole(file, plan.encode())
            yield cls(folder, -(-options.questions // PIECE), spans)
        finally:
            os.close(descriptor)

    def is_done(self, number: int) -> bool:
        """Whether nothing is left to do for a piece."""
        return self._done_file(number).exists()

    def has_run(self, number: int) -> bool:
        """Whether the runs of a piece are written, sent or not."""
        return self._rows_file(number).exists()

    def write(
        self, number: int, rows: Sequence[tuple[Trace, LedgerEntry]], requests: Sequence[ExportTraceServiceRequest]
    ) -> None:
        """Keep the runs of a piece; `requests` are their spans, empty when nobody wants them."""
        if requests:
            write_otlp_file(self.span_file(number), requests)
        lines = [json.dumps([t.to_json(), e.to_json()], ensure_ascii=False) + "\n" for t, e in rows]
        write_whole(self._rows_file(number), "".join(lines).encode())

    def requests(self, number: int) -> list[ExportTraceServiceRequest]:
        """The spans of a piece."""
        return read_otlp_file(self.span_file(number))

    def finish(self, number: int, delivered: int) -> None:
        """Nothing is left to do for a piece; `delivered` spans were accepted by the endpoint."""
        write_whole(self._done_file(number), str(delivered).encode())
        if not self.spans:
            self.span_file(number).unlink(missing_ok=True)

    def delivered(self, number: int) -> int:
        """How many spans of a piece the endpoint accepted."""
        return int(self._done_file(number).read_text("ascii"))

    def read(self, number: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The traces of a piece with their ledger entries, as JSON objects."""
        for line in self._rows_file(number).read_text("utf-8").splitlines():
            trace, entry = json.loads(line)
            yield trace, entry

    def span_file(self, number: int) -> Path:
        """Where the spans of a piece lie, as OTLP."""
        return self.folder / f"{number:07}.pb"

    def _rows_file(self, number: int) -> Path:
        return self.folder / f"{number:07}.jsonl"

    def _done_file(self, number: int) -> Path:
        return self.folder / f"{number:07}.done"
