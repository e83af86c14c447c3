"""Send a log's spans to an OTLP/HTTP back end: at full speed or paced, resumable, every span counted once
acknowledged.
"""

import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from observer_core.errors import InputError, ObserverError
from observer_core.files import write_whole
from observer_core.rewards.registry import Reward
from observer_core.rollouts import wire
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, grade_batches
from observer_core.rollouts.spans import SCOPE, SpanBuilder, reward_facts, scored_steps

MAX_SPANS = 1000
MAX_BYTES = 4 * 1024 * 1024
RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """Where to and how. `rate`: spans per second, None for full speed. `weights`: the run's weight per reward.

    `state`: file that remembers how many steps were acknowledged; with it an interrupted run goes on where it stopped.
    """

    endpoint: str
    project: str = "rollouts"
    service: str = "observer-rollouts"
    headers: Mapping[str, str] = field(default_factory=dict)
    rate: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    state: Path | None = None
    compress: bool = True
    patience: float = 120.0


@dataclass(slots=True)
class Emitted:
    """What was acknowledged by this call, and what earlier calls had sent (`resumed_steps`)."""

    steps: int = 0
    completions: int = 0
    spans: int = 0
    bytes: int = 0
    seconds: float = 0.0
    resumed_steps: int = 0

    def to_json(self) -> dict[str, Any]:
        rate = self.spans / self.seconds if self.seconds else 0.0
        return {**{name: getattr(self, name) for name in self.__slots__}, "spans_per_second": rate}


class OtlpSender:
    """Posts protobuf requests; retries what can pass with growing waits, honours Retry-After.

    Args:
        patience: seconds to go on retrying one request.
        waiting: told why, the first time that a request has to be sent again.
        sleep, clock: injected in tests.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        headers: Mapping[str, str] | None = None,
        compress: bool = True,
        patience: float = 120.0,
        waiting: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint, self._compress, self._patience = endpoint, compress, patience
        self._waiting, self._sleep, self._clock = waiting, sleep, clock
        encoding = {"content-encoding": "gzip"} if compress else {}
        self._client = httpx.Client(
            headers={"content-type": "application/x-protobuf", **encoding, **(headers or {})}, timeout=60.0
        )

    def close(self) -> None:
        self._client.close()

    def send(self, body: bytes) -> int:
        """Deliver one request; the number of bytes sent.

        Raises:
            ObserverError: refused, or no answer within the patience; says what the back end answered.
        """
        payload = gzip.compress(body, compresslevel=1) if self._compress else body
        deadline = self._clock() + self._patience
        wait = 0.25
        while True:
            pause: float | None = None
            try:
                answer = self._client.post(self._endpoint, content=payload)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise InputError(f"{self._endpoint} is no URL ({error}); give http://host:port/v1/traces") from error
            else:
                if answer.is_success:
                    return len(payload)
                problem = f"HTTP {answer.status_code} {answer.text[:120]!r}"
                if answer.status_code not in RETRIED:
                    raise ObserverError(f"{self._endpoint} refused spans: {problem}; check the address and the key")
                after = answer.headers.get("retry-after", "")
                pause = float(after) if after.isdigit() else None
            pause = wait if pause is None else pause
            if self._clock() + pause > deadline:
                raise ObserverError(
                    f"{self._endpoint} took no spans for {self._patience:g} s ({problem}); "
                    "start the back end and run the command again, it goes on where it stopped"
                )
            if self._waiting is not None:
                self._waiting(f"{self._endpoint} takes no spans ({problem}); trying again for {self._patience:g} s")
                self._waiting = None
            self._sleep(pause)
            wait = min(wait * 2, 10.0)


class _Progress:
    """The state file: steps acknowledged, in the log's order."""

    def __init__(self, path: Path | None, run: str, endpoint: str) -> None:
        self._path, self._key = path, {"run": run, "endpoint": endpoint}
        self.steps = 0
        if path is not None and path.is_file():
            stored = json.loads(path.read_text())
            if {name: stored.get(name) for name in self._key} == self._key:
                self.steps = int(stored["steps"])

    def save(self, steps: int) -> None:
        self.steps = steps
        if self._path is not None:
            write_whole(self._path, json.dumps({**self._key, "steps": steps}).encode())


@dataclass(slots=True)
class _Batch:
    spans: list[bytes] = field(default_factory=list)
    size: int = 0
    steps: int = 0
    completions: int = 0


def emit(
    log: RolloutLog,
    rewards: Sequence[Reward],
    options: EmitOptions,
    grading: GradeOptions | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    waiting: Callable[[str], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Emitted:
    """Grade the log again and send it as spans.

    Args:
        rewards: those to grade again; the log's other rewards are sent with their logged scores.
        progress: told the number of spans acknowledged.
        waiting: told, once, that the back end takes nothing and is tried again.

    Raises:
        ObserverError: the back end refused or vanished; what was acknowledged stays so.
    """
    done = _Progress(options.state, log.run, options.endpoint)
    result = Emitted(resumed_steps=done.steps)
    builder = SpanBuilder(log.run, reward_facts(rewards, options.weights))
    resource = {"service.name": options.service, "openinference.project.name": options.project}
    sender = OtlpSender(
        options.endpoint,
        headers=options.headers,
        compress=options.compress,
        patience=options.patience,
        waiting=waiting,
        sleep=sleep,
        clock=clock,
    )
    begun = clock()

    def deliver(batch: _Batch) -> None:
        body = wire.export_request(resource, SCOPE, "1", batch.spans)
        result.bytes += sender.send(body)
        result.spans += len(batch.spans)
        result.completions += batch.completions
        result.steps += batch.steps
        done.save(done.steps + batch.steps)
        if options.rate:
            sleep(max(0.0, begun + result.spans / options.rate - clock()))
        if progress:
            progress(result.spans)

    batches = grade_batches(_after(log.batches(), done.steps), rewards, grading or GradeOptions())
    with ThreadPoolExecutor(1) as pool:
        flying: Future[None] | None = None
        try:
            for batch in _requests(scored_steps(batches, log.rewards), builder):
                if flying is not None:
                    flying.result()
                flying = pool.submit(deliver, batch)
            if flying is not None:
                flying.result()
        finally:
            sender.close()
    result.seconds = clock() - begun
    return result


def _requests(steps: Iterator[tuple[int, list[Any]]], builder: SpanBuilder) -> Iterator[_Batch]:
    """Spans in requests of at most `MAX_SPANS` and about `MAX_BYTES`; a step counts in the request that ends it."""
    batch = _Batch()
    for step, scored in steps:
        for span in builder.step(step, scored, time.time_ns()):
            encoded = span.encode()
            if batch.spans and (len(batch.spans) >= MAX_SPANS or batch.size + len(encoded) > MAX_BYTES):
                yield batch
                batch = _Batch()
            batch.spans.append(encoded)
            batch.size += len(encoded)
            batch.completions += span.kind == "completion"
        batch.steps += 1
    if batch.spans:
        yield batch


def _after(batches: Iterator[pa.RecordBatch], steps: int) -> Iterator[pa.RecordBatch]:
    """The rows after the first `steps` runs of equal step."""
    seen, last = 0, None
    for batch in batches:
        if seen > steps or steps == 0:
            yield batch
            continue
        start = batch.num_rows
        for i, step in enumerate(batch.column("step").to_pylist()):
            if step != last:
                seen, last = seen + 1, step
                if seen > steps:
                    start = i
                    break
        if start < batch.num_rows:
            yield batch.slice(start)
