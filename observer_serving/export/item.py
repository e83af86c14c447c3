"""What is exported, what became of it, and what every exporter looks like."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.decisions import Decision
from observer_core.errors import ObserverError


@dataclass(frozen=True, slots=True)
class ExportItem:
    """Spans of one kept trace, the root already decorated; without a decision they are its late spans."""

    decision: Decision | None
    resource_spans: list[ResourceSpans]

    @property
    def trace_id(self) -> str:
        """The trace they belong to, in hex; empty when there are no spans."""
        for group in self.resource_spans:
            for scope_spans in group.scope_spans:
                for span in scope_spans.spans:
                    return span.trace_id.hex()
        return ""

    @property
    def spans(self) -> int:
        """How many spans."""
        return sum(len(scope.spans) for group in self.resource_spans for scope in group.scope_spans)


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """What became of an item: `exported`, `late_spans` (exported after their trace) or `dead_letter`.

    Told at least once. `detail` is the back end's answer for a dead letter.
    """

    trace_id: str
    exporter: str
    outcome: Literal["exported", "late_spans", "dead_letter"]
    spans: int
    at: str
    detail: str = ""


OnOutcome = Callable[[ExportOutcome], None]
"""Called from the exporter's thread."""


class QueueFull(ObserverError):
    """The queue on disk has reached its bound; the caller keeps the item and tries again later."""


@dataclass(slots=True)
class ExporterStats:
    """Counts since the start, and how far behind the exporter is."""

    queued_items: int = 0
    queued_bytes: int = 0
    oldest_age_s: float = 0.0
    exported_traces: int = 0
    exported_spans: int = 0
    dead_lettered: int = 0
    requests: int = 0
    retries: int = 0
    rejected_spans: int = 0
    repaired_spans: int = 0
    annotations: int = 0
    annotations_refused: int = 0
    read_back: int = 0
    last_error: str = field(default="")
    """Why the back end cannot be reached now; empty once it answers again."""


class Exporter(Protocol):
    """Takes kept traces to a back end. `submit` may be called from any thread."""

    name: str

    def submit(self, item: ExportItem) -> None:
        """Take an item over: when this returns it survives a crash.

        Raises:
            ObserverError: the disk refused it or the queue is full; the caller still owns the item.
        """
        ...

    def start(self) -> None:
        """Begin to deliver, first what an earlier process left."""
        ...

    def stop(self, timeout_s: float) -> None:
        """Finish what can be delivered within the time; the rest stays on disk for the next start."""
        ...

    def erase(self, trace_id: str) -> int:
        """Forget what waits, or was refused, of a trace (hex); how many items there were."""
        ...

    def probe(self) -> str | None:
        """Ask the back end once, without sending anything; what is wrong, `None` if it answers well."""
        ...

    def stats(self) -> ExporterStats: ...
