"""What becomes of the log's entries that an engine had before: decisions that may not have been delivered."""

from collections.abc import Iterator
from dataclasses import replace

from observer_serving.assemble import AssembledTrace
from observer_serving.buffer.protocol import Logged
from observer_serving.buffer.received import JsonTrace
from observer_serving.buffer.record import Recorded
from observer_serving.candidate import Candidate, from_json, read_spans
from observer_serving.deliver import LatePiece
from observer_serving.receive.wire import SPAN_ID_BYTES, Piece, split_ids


class Undelivered:
    """Decisions on record that were perhaps not delivered, with their entries, by the part of the buffer they are in.

    Entries of a part come one after the other; only when the last has come is a decision's trace whole again.
    """

    def __init__(self) -> None:
        # Part → row of the record → the decision with its entries.
        self._parts: dict[int, dict[int, tuple[Recorded, list[tuple[Logged, Piece | JsonTrace]]]]] = {}

    def begin(self, part: int) -> None:
        """A part's entries are coming."""
        self._parts.setdefault(part, {})

    def resuming(self) -> bool:
        """Whether a part's entries have not all come."""
        return bool(self._parts)

    def add(self, part: int, recorded: Recorded, entry: Logged, item: Piece | JsonTrace) -> None:
        """One more piece of a decided trace."""
        rows = self._parts.setdefault(part, {})
        rows.setdefault(recorded.row, (recorded, []))[1].append((entry, item))

    def take(self, part: int, now: float) -> Iterator[tuple[Recorded, Candidate, list[LatePiece]]]:
        """A part's decisions in the order of the record, each with its candidate and late pieces; it is then empty."""
        rows = self._parts.pop(part, {})
        for row in sorted(rows):
            recorded, items = rows[row]
            yield recorded, *candidate_again(recorded, items, now)

    def forget(self, part: int) -> int:
        """Another engine delivers a part's decisions; how many spans have come of them."""
        entries = [items for _, items in self._parts.pop(part, {}).values()]
        return sum(item.spans for items in entries for _, item in items if isinstance(item, Piece))


def candidate_again(
    recorded: Recorded, items: list[tuple[Logged, Piece | JsonTrace]], now: float
) -> tuple[Candidate, list[LatePiece]]:
    """The candidate behind a recorded decision, from the log, and the late pieces among its items."""
    decision = recorded.decision
    posted = [(entry, item) for entry, item in items if isinstance(item, JsonTrace)]
    known = set(split_ids(recorded.span_ids))
    pieces: list[tuple[Piece, int]] = []
    late: list[LatePiece] = []
    for entry, item in items:
        if isinstance(item, JsonTrace):
            continue
        if known.issuperset(split_ids(item.span_ids)):
            pieces.append((item, entry.segment))
        else:
            late.append(LatePiece(item, entry.segment))
    if posted:
        entry, item = posted[0]
        candidate = from_json(item, received_ns=entry.received.received_ns, segment=entry.segment, now=now)
        more = tuple(entry.segment for entry, _ in posted[1:])
        before = [LatePiece(piece, segment) for piece, segment in pieces]  # sent late and forwarded already
        return replace(candidate, segments=(*candidate.segments, *more)), before + late
    ids = [span_id for piece, _ in pieces for span_id in split_ids(piece.span_ids)]
    distinct = b"".join(dict.fromkeys(ids))  # of the recorded ones, a late span may be in the log no more
    assembled = AssembledTrace(
        trace_id=bytes.fromhex(decision.trace_id),
        pieces=tuple(piece.data for piece, _ in pieces),
        span_ids=distinct,
        duplicates=len(ids) - len(distinct) // SPAN_ID_BYTES,
        complete_reason=decision.complete_reason,
        received_ns=items[0][0].received.received_ns,
        completed_at=now,
        segments=tuple(segment for _, segment in pieces),
    )
    return read_spans(assembled), late
