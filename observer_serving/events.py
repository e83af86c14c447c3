"""What reaches the engine's thread through its queue."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from observer_serving.buffer.protocol import Logged
from observer_serving.candidate import Candidate
from observer_serving.evaluate import Evaluated
from observer_serving.export import ExportOutcome
from observer_serving.score import Scored, ShadowScore


@dataclass(frozen=True, slots=True)
class Arrived:
    """Entries that are safe and came together."""

    entries: list[Logged]


@dataclass(frozen=True, slots=True)
class Again:
    """An entry that an engine had before."""

    entry: Logged
    part: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The last of a part's `Again` has come."""

    part: int
    done: threading.Event


@dataclass(frozen=True, slots=True)
class Forget:
    """Another engine goes on with the traces that `covers` says yes to."""

    part: int
    covers: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Read:
    """A large trace was read; `unread` stood for it meanwhile."""

    unread: Candidate
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Call:
    """Something to do between two steps, on the thread that owns everything."""

    function: Callable[[], Any]
    result: Future[Any]

    def run(self) -> None:
        """Do it; what it raises is the caller's."""
        try:
            self.result.set_result(self.function())
        except Exception as error:
            self.result.set_exception(error)


Event = (
    Call | Arrived | Again | Resumed | Forget | Read
    | list[Scored] | list[Evaluated] | ShadowScore | ExportOutcome | None
)  # fmt: skip
