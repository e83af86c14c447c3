"""Large traces are read beside the engine: 50,000 spans take seconds, which their neighbours must not wait."""

import queue
import threading
from collections.abc import Callable

from observer_serving.assemble import AssembledTrace
from observer_serving.candidate import Candidate, read_spans, unread
from observer_serving.events import Event, Read


class Reader:
    """Reads one large trace after the other on its own thread, which begins with the first; owned by the engine's."""

    def __init__(self, put: Callable[[Event], None]) -> None:
        self._put = put
        self._waiting: queue.SimpleQueue[tuple[AssembledTrace, Candidate]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="observer-reader", daemon=True)

    def submit(self, assembled: AssembledTrace) -> Candidate:
        """Returns what stands for the trace until `Read` comes, with the same candidate in it."""
        candidate = unread(assembled)
        self._waiting.put((assembled, candidate))
        if not self._thread.is_alive():
            self._thread.start()
        return candidate

    def _run(self) -> None:
        while True:
            assembled, candidate = self._waiting.get()
            self._put(Read(candidate, read_spans(assembled)))
