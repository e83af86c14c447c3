"""What a restart makes of the log's entries about a trace that was decided and not delivered."""

import logging
from dataclasses import replace

from observer_serving.assemble import AssembledTrace, split_ids
from observer_serving.buffer.received import JsonTrace
from observer_serving.buffer.record import Recorded
from observer_serving.buffer.wal import Logged
from observer_serving.candidate import Candidate, from_json, from_spans, unreadable
from observer_serving.deliver import LatePiece
from observer_serving.receive.wire import Piece

log = logging.getLogger(__name__)


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
    segments = tuple(segment for _, segment in pieces)
    if posted:
        entry, item = posted[0]
        candidate = from_json(item, received_ns=entry.received.received_ns, segment=entry.segment, now=now)
        more = tuple(entry.segment for entry, _ in posted[1:])
        return replace(candidate, segments=(*candidate.segments, *more, *segments)), late
    assembled = AssembledTrace(
        trace_id=bytes.fromhex(decision.trace_id),
        data=b"".join(piece.data for piece, _ in pieces),
        span_ids=recorded.span_ids,
        duplicates=sum(piece.spans for piece, _ in pieces) - len(known),
        complete_reason=decision.complete_reason,
        received_ns=items[0][0].received.received_ns,
        completed_at=now,
        segments=segments,
    )
    try:
        return from_spans(assembled), late
    except Exception:
        log.exception("cannot read trace %s as an agent run", decision.trace_id)
        return unreadable(assembled), late
