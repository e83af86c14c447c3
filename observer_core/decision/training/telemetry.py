"""A training's own telemetry: one trace per optimiser step, one child span per example, to any OTLP/HTTP back end.

The shape and the names are those of rollouts (`docs/rollouts.md`), so that the same queries work: a step's span says
`training.step`, loss, learning rate, gradient norm and tokens; an example's says its trace, question, label, loss and
the probability the model gave the label. Trace and span ids follow from run, stage, step and row: a step that a
resumed training makes again changes nothing in a back end that keeps one span per id.

Telemetry must never stall or fail a training. Steps go through a bounded queue to a thread that encodes and sends; what
does not fit, and what the back end does not take, is counted and reported at the end.
"""

import contextlib
import math
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from observer_core.decision.training.data import About
from observer_core.errors import InputError, ObserverError
from observer_core.rollouts import wire
from observer_core.rollouts.emit import MAX_SPANS, OtlpSender
from observer_core.rollouts.spans import Attributes, Span, stable_id

SCOPE = "observer.training"
QUEUED_STEPS = 256
SEND_PATIENCE = 5.0
"""Seconds one request is retried before its spans are given up."""
CLOSE_PATIENCE = 10.0
"""Seconds the end of a training waits for what is still queued."""


@dataclass(frozen=True, slots=True)
class ExampleScore:
    """A training example's loss in one step; for one right option, p of it is exp(−loss)."""

    row: int
    about: About
    loss: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimiser step. `times` is its start and end in Unix nanoseconds."""

    stage: str
    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    times: tuple[int, int]
    examples: Sequence[ExampleScore]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Spans that the back end took, and that it did not; `problem` is why, the first reason met."""

    endpoint: str
    sent: int
    lost: int
    problem: str | None

    def __str__(self) -> str:
        if not self.lost:
            return f"{self.sent} spans sent to {self.endpoint}"
        why = f" ({self.problem})" if self.problem else " (it takes them more slowly than training makes them)"
        return f"{self.lost} of {self.sent + self.lost} spans did not reach {self.endpoint}{why}"


def traces_url(endpoint: str) -> str:
    """The address to post to: OpenTelemetry's path is added to a bare host.

    Raises:
        InputError: not an http address.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"--otlp {endpoint} is no http address; give one such as http://127.0.0.1:4318")
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


class Telemetry:
    """Sends a training's steps in the background.

    Args:
        endpoint: an OTLP/HTTP back end, with or without `/v1/traces`.
        run: the training's name.
        project: Phoenix's project, and the service's name.
        headers: such as a key the back end wants.
        queued_steps: steps that may wait; more are dropped.
    """

    def __init__(
        self,
        endpoint: str,
        run: str,
        *,
        project: str = "observer-training",
        headers: Mapping[str, str] | None = None,
        queued_steps: int = QUEUED_STEPS,
    ) -> None:
        self._endpoint, self._run = traces_url(endpoint), run
        self._resource = {"service.name": project, "openinference.project.name": project}
        self._sender = OtlpSender(self._endpoint, headers=headers, patience=SEND_PATIENCE)
        self._queue: queue.Queue[StepRecord] = queue.Queue(queued_steps)
        self._made = self._sent = 0
        self._problem: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="training-telemetry", daemon=True)
        self._thread.start()

    def step(self, record: StepRecord) -> None:
        """Hand over a step; returns at once."""
        self._made += 1 + len(record.examples)
        with contextlib.suppress(queue.Full):  # counted at the end: made and not sent
            self._queue.put_nowait(record)

    def close(self, patience: float = CLOSE_PATIENCE) -> Delivered:
        """Wait a little for what is queued, and say what arrived."""
        self._closing.set()
        self._thread.join(patience)
        return Delivered(self._endpoint, self._sent, self._made - self._sent, self._problem)

    def _work(self) -> None:
        while (spans := self._next()) is not None:
            body = wire.export_request(self._resource, SCOPE, "1", [span.encode() for span in spans])
            try:
                self._sender.send(body)
                self._sent += len(spans)
            except ObserverError as error:
                self._problem = self._problem or str(error)
        self._sender.close()

    def _next(self) -> list[Span] | None:
        """The spans of the steps that wait, about one request's worth; `None` when training and queue have ended."""
        spans: list[Span] = []
        while len(spans) < MAX_SPANS:
            try:
                record = self._queue.get_nowait() if spans else self._queue.get(timeout=0.1)
                spans += step_spans(self._run, record)
            except queue.Empty:
                if spans:
                    break
                if self._closing.is_set():
                    return None
        return spans


def step_spans(run: str, record: StepRecord) -> Iterator[Span]:
    """The step's trace: its root, then one span per example."""
    trace_id = stable_id(16, "trace", run, record.stage, record.step)
    root_id = stable_id(8, "step", run, record.stage, record.step)
    start, end = record.times
    shared: Attributes = {"training.run": run, "training.stage": record.stage, "training.step": record.step}
    yield Span(
        trace_id,
        root_id,
        None,
        "step",
        f"training step {record.step}",
        start,
        end,
        {
            "openinference.span.kind": "CHAIN",
            "session.id": run,
            **shared,
            "training.loss": record.loss,
            "training.learning_rate": record.learning_rate,
            "training.grad_norm": record.grad_norm,
            "training.tokens": record.tokens,
            "training.examples": len(record.examples),
        },
    )
    for example in record.examples:
        p = math.exp(-example.loss)
        attributes: Attributes = {
            "openinference.span.kind": "EVALUATOR",
            **shared,
            "task.id": example.about.trace_id,
            "example.row": example.row,
            "example.question": example.about.question,
            "example.label": example.about.label,
            "example.loss": example.loss,
            "example.p": p,
            "gen_ai.evaluation.name": example.about.question,
            "gen_ai.evaluation.score.value": p,
            "gen_ai.evaluation.score.label": example.about.label,
        }
        span_id = stable_id(8, "example", run, record.stage, record.step, example.row, example.about.question)
        yield Span(trace_id, span_id, root_id, "example", f"example {example.about.question}", start, end, attributes)
