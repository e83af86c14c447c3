"""Events of the record's log as messages, none larger than the server takes."""

import base64
from collections.abc import Sequence

from observer_serving.receive.wire import SPAN_ID_BYTES

ROW_BITS = 12
MAX_IN_MESSAGE = 1 << ROW_BITS


def as_message(kind: str, events: Sequence[bytes]) -> bytes:
    """A message with events of one kind, each as JSON."""
    return b'{"%s":[%s]}' % (kind.encode(), b",".join(events))


def chunks(items: Sequence[bytes], max_payload: int) -> list[list[tuple[int, bytes]]]:
    """The items with their places, as many at once as fill half a message: they may grow (see `again`)."""
    out: list[list[tuple[int, bytes]]] = []
    size = 0
    for place, data in enumerate(items):
        size += len(data) + 1
        if not out or size > max_payload // 2 or len(out[-1]) == MAX_IN_MESSAGE:
            out.append([])
            size = len(data) + 1
        out[-1].append((place, data))
    return out


def cut_ids(span_ids: bytes, max_payload: int) -> list[str]:
    """Ids as text, at least one, each so short that it fits into half a message with a decision."""
    most = max_payload // 4 // SPAN_ID_BYTES * SPAN_ID_BYTES
    return [base64.b64encode(span_ids[i : i + most]).decode() for i in range(0, len(span_ids) or 1, most)]
