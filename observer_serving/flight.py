"""Traces on their way from assembly to the record: complete, being scored or decided, not yet written down."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from observer_serving.candidate import Candidate
from observer_serving.deliver import LatePiece


@dataclass(slots=True)
class Flight:
    """One such trace, and the pieces of it that came meanwhile."""

    candidate: Candidate
    late: list[LatePiece] = field(default_factory=list)

    @property
    def spans(self) -> int:
        """Its own spans, each as often as it came, and the late ones."""
        late = sum(piece.piece.spans for piece in self.late)
        return self.candidate.spans + self.candidate.duplicates + late


class InFlight:
    """All of them, by trace id; owned by the engine's thread."""

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight] = {}
        self.bytes = self.spans = 0

    def __contains__(self, trace_id: bytes) -> bool:
        return trace_id in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._flights)

    def add(self, trace_id: bytes, candidate: Candidate) -> None:
        self._flights[trace_id] = Flight(candidate)
        self.bytes += candidate.size
        self.spans += self._flights[trace_id].spans

    def add_late(self, trace_id: bytes, piece: LatePiece) -> None:
        self._flights[trace_id].late.append(piece)
        self.spans += piece.piece.spans

    def has(self, candidate: Candidate) -> bool:
        """Whether it is this very candidate that waits: a trace may have gone to another engine and come back."""
        flight = self._flights.get(bytes.fromhex(candidate.trace_id))
        return flight is not None and flight.candidate is candidate

    def replace(self, unread: Candidate, candidate: Candidate) -> None:
        """Put what was read in the place of what stood for it."""
        self._flights[bytes.fromhex(unread.trace_id)].candidate = candidate

    def take(self, trace_id: bytes) -> Flight:
        """Take a trace off them."""
        flight = self._flights.pop(trace_id)
        self.bytes -= flight.candidate.size
        self.spans -= flight.spans
        return flight
