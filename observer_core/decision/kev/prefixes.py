"""States that have been read, kept for the next question about them."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

KEPT_BYTES = 512 * 2**20


class Sized(Protocol):
    """Something that knows how much memory it takes."""

    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=Sized)


class ByteLru(Generic[Value]):
    """The values used last, as many as fit into `max_bytes`.

    Args:
        max_bytes: a value that is larger on its own is not kept; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """The value, which counts as used now."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value; those unused for longest make room."""
        if key in self._values or value.nbytes > self.max_bytes:
            return
        self._values[key] = value
        self.nbytes += value.nbytes
        while self.nbytes > self.max_bytes:
            self.nbytes -= self._values.popitem(last=False)[1].nbytes
