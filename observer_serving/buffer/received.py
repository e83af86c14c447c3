"""What the write-ahead log holds: one entry per accepted request, as bytes that a restart reads back."""

import struct
from dataclasses import dataclass

from observer_serving.buffer.segments import framed, payloads
from observer_serving.receive.wire import SPAN_ID_BYTES, TRACE_ID_BYTES, Piece

_HEAD = struct.Struct("<BQI")  # kind, received_ns, number of items
_SPANS_HEAD = struct.Struct(f"<{TRACE_ID_BYTES}sIBI")  # trace id, spans, root ended, data length
_TRACE_HEAD = struct.Struct(f"<{TRACE_ID_BYTES}sI")
_KIND_SPANS = 1
_KIND_TRACE = 2


@dataclass(frozen=True, slots=True)
class JsonTrace:
    """A whole trace posted as JSON (`data` is its text); it needs no assembly."""

    trace_id: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """One accepted request: its items and when it came (UNIX nanoseconds)."""

    received_ns: int
    items: tuple[Piece | JsonTrace, ...]

    @property
    def size(self) -> int:
        return sum(len(item.data) for item in self.items)

    def encode(self) -> list[bytes]:
        """The bytes of a log entry, in parts. A request holds spans or JSON traces, never both."""
        parts: list[bytes] = []
        kind = _KIND_SPANS
        for item in self.items:
            if isinstance(item, Piece):
                parts += (
                    _SPANS_HEAD.pack(item.trace_id, item.spans, item.root_ended, len(item.data)),
                    item.span_ids,
                    item.data,
                )
            else:
                kind = _KIND_TRACE
                parts += (_TRACE_HEAD.pack(item.trace_id, len(item.data)), item.data)
        return [_HEAD.pack(kind, self.received_ns, len(self.items)), *parts]

    @classmethod
    def decode(cls, data: bytes) -> "Received":
        """Read an entry whose checksum has been verified.

        Raises:
            ValueError: `encode` did not make it.
        """
        try:
            received, end = cls._decode(data)
        except struct.error as error:
            raise ValueError(str(error)) from None
        if end != len(data):
            raise ValueError(f"it is {len(data)} bytes long and should be {end}")
        return received

    @classmethod
    def _decode(cls, data: bytes) -> "tuple[Received, int]":
        kind, received_ns, count = _HEAD.unpack_from(data)
        if kind not in (_KIND_SPANS, _KIND_TRACE):
            raise ValueError(f"unknown kind {kind}")
        position = _HEAD.size
        items: list[Piece | JsonTrace] = []
        for _ in range(count):
            if kind == _KIND_SPANS:
                trace_id, spans, root_ended, length = _SPANS_HEAD.unpack_from(data, position)
                ids = position + _SPANS_HEAD.size
                start = ids + spans * SPAN_ID_BYTES
                items.append(Piece(trace_id, data[ids:start], bool(root_ended), data[start : start + length]))
            else:
                trace_id, length = _TRACE_HEAD.unpack_from(data, position)
                start = position + _TRACE_HEAD.size
                items.append(JsonTrace(trace_id, data[start : start + length]))
            position = start + length
        return cls(received_ns, tuple(items)), position


def without_trace(segment: bytes, seed: int, trace_id: bytes) -> tuple[bytes, int]:
    """A segment of the log without a trace's items, and how many those were; what cannot be read goes too."""
    erased = 0
    parts: list[bytes] = []
    for payload in payloads(segment, seed):
        try:
            received = Received.decode(payload)
        except ValueError:  # it may hold the trace: nobody could tell, nor say that it does not
            continue
        kept = tuple(item for item in received.items if item.trace_id != trace_id)
        erased += len(received.items) - len(kept)
        if kept:
            parts += framed(Received(received.received_ns, kept).encode(), seed)
    return b"".join(parts), erased
