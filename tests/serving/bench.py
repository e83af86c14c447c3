"""An engine over real files whose threads never start and whose clock the tests move."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from serving.harness import make_request

from observer_core.decision.protocol import Score
from observer_core.decisions import Decision
from observer_core.errors import ObserverError
from observer_core.policy import Policy, read_policy
from observer_core.traces.trace import Trace
from observer_serving.assemble import Assembler, AssemblyLimits
from observer_serving.beside import Beside
from observer_serving.buffer.protocol import Logged
from observer_serving.buffer.received import Received
from observer_serving.buffer.record import DecisionRecord
from observer_serving.clock import ManualClock
from observer_serving.decide import Decider
from observer_serving.deliver import Delivery
from observer_serving.engine import Engine
from observer_serving.evaluate import Evaluators
from observer_serving.export import ExporterStats, ExportItem
from observer_serving.metrics import Metrics
from observer_serving.receive.wire import cut
from observer_serving.score import LoadedModel, ModelChoice, Scoring, Stage
from observer_serving.spool import Spool
from observer_serving.stats import Stats
from observer_serving.undeliverable import UNDELIVERABLE_FOLDER, Undeliverable

DEADLINE = 5.0


class FixedScorer:
    """Gives every trace the same score; can be told to raise or to answer nonsense."""

    model, model_version = "fixed", "1"

    def __init__(self, p_wrong: float = 0.9) -> None:
        self.p_wrong = p_wrong
        self.fails_on: str | None = None
        self.nonsense: list[Score] | None = None

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        if self.fails_on is not None and any(self.fails_on in trace.question for trace in traces):
            raise RuntimeError("cannot read this one")
        return self.nonsense if self.nonsense is not None else [Score(self.p_wrong, self.p_wrong) for _ in traces]


class ListExporter:
    """Keeps what it is given; can be told to be full."""

    name = "list"

    def __init__(self) -> None:
        self.items: list[ExportItem] = []
        self.full = False

    def submit(self, item: ExportItem) -> None:
        if self.full:
            raise ObserverError("the queue is full")
        self.items.append(item)

    def start(self) -> None: ...
    def stop(self, timeout_s: float) -> None: ...

    def stats(self) -> ExporterStats:
        return ExporterStats()


class Bench:
    """An engine over real files whose threads never start; `settle` runs it until nothing is left to do."""

    def __init__(self, folder: Path, **policy) -> None:
        self.models: dict[str, LoadedModel] = {}
        self.evaluators: Evaluators | None = None
        self.policies: dict[str, Policy] = {}
        self.folder = folder
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.scorer = FixedScorer()
        self.released: Counter[int] = Counter()
        self.exporters = [ListExporter(), ListExporter()]
        self.exporters[1].name = "other"
        self.log: list[Logged] = []
        self.policy = read_policy({"keep_threshold": 0.5, "random_share": 0.0, "min_share": None} | policy)
        self.open()

    def open(self) -> None:
        """As a process does at start."""
        self.record = DecisionRecord(self.folder / "decisions.sqlite")
        self.decider = Decider(self.folder, {"": self.policy} | self.policies, self.clock)
        models = {"": self.model()} | self.models
        self.scoring = Scoring(models, lambda event: self.engine.put(event), self.clock, self.metrics)
        self.delivery = Delivery(
            self.record,
            lambda segment, items: self.released.update({segment: items}),
            Spool(self.folder / "spool", max_rows=1000, max_age_s=3600, monotonic=self.clock.monotonic),
            self.exporters,
            Undeliverable(self.folder / UNDELIVERABLE_FOLDER),
            self.metrics,
            settle_after=10,
            settle_rows=1000,
        )
        self.engine = Engine(
            assembler=Assembler(AssemblyLimits(quiet_period=2, timeout=60)),
            scoring=self.scoring,
            beside=Beside(self.evaluators, self.clock, self.metrics),
            decider=self.decider,
            record=self.record,
            delivery=self.delivery,
            release=lambda segment, items: self.released.update({segment: items}),
            clock=self.clock,
            metrics=self.metrics,
            stats=Stats(0.0),
            max_age=58,
        )

    def model(self, scorer: FixedScorer | None = None) -> LoadedModel:
        """A scorer as the service would have loaded it."""
        return LoadedModel(ModelChoice(), Stage(scorer or self.scorer, deadline=DEADLINE, max_batch=4))

    def crash(self) -> None:
        """Lose everything in memory and read the log back."""
        self.record.close()
        self.open()
        self.engine.resume(self.log)

    def receive(
        self, trace_id: bytes, span_ids: list[bytes], *, question: str = "Which river?", service: str = "agent"
    ) -> None:
        request = make_request((trace_id, span_ids), question=question, service=service)
        pieces = cut(request, request.SerializeToString()).pieces
        self.put(Received(self.clock.now_ns(), tuple(pieces)))

    def put(self, received: Received) -> None:
        self.log.append(Logged(len(self.log), received))
        self.engine.accept([self.log[-1]])

    def settle(self, seconds: float = 3.0) -> None:
        self.engine.step()
        self.clock.advance(seconds)
        self.engine.step()
        while self.scoring.run_once():
            self.engine.step()

    def decisions(self) -> list[Decision]:
        return self.record.find({}, limit=100)[0]
