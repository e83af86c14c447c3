"""What the API may reach of the running service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from observer_serving.buffer.protocol import Buffer
from observer_serving.buffer.record import DecisionRecord
from observer_serving.clock import Clock
from observer_serving.decide import Decider
from observer_serving.engine import Engine
from observer_serving.erase import Eraser
from observer_serving.export import Exporter
from observer_serving.metrics import Metrics
from observer_serving.receive.receiver import Gate, Receiver
from observer_serving.score import Scoring
from observer_serving.stats import Stats
from observer_serving.switchboard import Switchboard
from observer_serving.undeliverable import Undeliverable


@dataclass(frozen=True, slots=True)
class Parts:
    """The running service, piece by piece; `listeners` gives the addresses it listens on."""

    version: str
    receiver: Receiver
    gate: Gate
    record: DecisionRecord
    wal: Buffer
    engine: Engine
    scoring: Scoring
    decider: Decider
    switchboard: Switchboard
    eraser: Eraser
    exporters: Sequence[Exporter]
    undeliverable: Undeliverable
    metrics: Metrics
    stats: Stats
    clock: Clock
    max_request: int
    max_values: int
    trace_url: str | None
    listeners: Callable[[], dict[str, Any]]
