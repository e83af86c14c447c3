"""Labeled traces in bulk: questions from the generated world or HotpotQA, run by the agent, some with seeded faults.

The agent runs in processes of its own, so that its global tracer provider and the instrumentation of ADK stay out of
the caller. With the offline model the traces depend only on the options, whatever the number of workers, but for ids
and times.
"""

import asyncio
import json
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from observer_core.errors import InputError, ObserverError
from observer_core.files import whole_dir, write_whole
from observer_core.traces.jsonl import write_jsonl
from observer_core.traces.labels import gold_label
from observer_core.traces.trace import Trace
from observer_pipeline.agent.faults import FaultPlan, Injection
from observer_pipeline.agent.hotpot import read_hotpot
from observer_pipeline.agent.questions import AgentQuestion
from observer_pipeline.agent.world import generate_world

Progress = Callable[[str, float], None]
TRACES_FILE = "traces.jsonl"
LEDGER_FILE = "ledger.jsonl"
_CHUNK = 10
_OTLP_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What to generate.

    Args:
        questions: how many runs, one per question.
        seed: of the world and of the offline model's manners.
        faults: the plan of seeded faults.
        workers: processes that run the agent.
        endpoint: where the spans are exported by OTLP/HTTP as well (`http://host:4318`).
        service_name: `service.name` of the spans.
        project: `openinference.project.name` of the spans.
        source: a HotpotQA file to take the questions from, in order; the generated world when None.
        first: index of the first question, so that later calls go on where earlier ones stopped.
        tool_calls, steps: the budget of a run.
    """

    questions: int
    seed: int = 0
    faults: FaultPlan = field(default_factory=FaultPlan)
    workers: int = 1
    endpoint: str | None = None
    service_name: str = "observer-agent"
    project: str = "observer"
    source: str | None = None
    first: int = 0
    tool_calls: int = 6
    steps: int = 10


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The truth about one run, kept beside its trace: the fault injected into it, if any."""

    trace_id: str
    qid: str
    fault: str | None
    details: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"trace_id": self.trace_id, "qid": self.qid, "fault": self.fault, "details": self.details}


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """The labeled traces in the order of their questions, their ledger, and how many spans the endpoint accepted."""

    traces: list[Trace]
    ledger: list[LedgerEntry]
    spans_delivered: int


def generate(options: GenerateOptions, *, out: Path | None = None, progress: Progress | None = None) -> GenerateResult:
    """Run the agent on many questions and label what it answered.

    Args:
        out: a new folder for `traces.jsonl` and `ledger.jsonl`; appears whole or not at all.
        progress: told (what is being done, fraction done) after every few runs.

    Raises:
        InputError: unusable options, question file or endpoint, or `out` exists.
        ObserverError: spans could not be delivered, or a worker died.
    """
    if options.questions < 1 or options.workers < 1:
        raise InputError("the numbers of questions and workers must be at least 1; give larger ones")
    if out is not None and out.exists():
        raise InputError(f"{out} exists already; choose another folder or remove it first")
    if options.endpoint:
        probe_endpoint(options.endpoint)
    result = _run_all(options, progress or (lambda _what, _fraction: None))
    if out is not None:
        with whole_dir(out) as folder:
            write_jsonl(folder / TRACES_FILE, result.traces)
            lines = [json.dumps(entry.to_json(), ensure_ascii=False) + "\n" for entry in result.ledger]
            write_whole(folder / LEDGER_FILE, "".join(lines).encode())
    return result


def questions_of(options: GenerateOptions) -> Iterator[AgentQuestion]:
    """The questions of these options, in order.

    Raises:
        InputError: the source cannot be used or has too few questions.
    """
    last = options.first + options.questions
    if options.source is None:
        yield from generate_world(last, options.seed, first=options.first)
        return
    questions = read_hotpot(Path(options.source))
    if len(questions) < last:
        raise InputError(f"{options.source} has {len(questions)} questions, not {last}; ask for fewer")
    yield from questions[options.first : last]


def probe_endpoint(endpoint: str) -> None:
    """Make sure that a receiver answers before work is done for it: an empty export request must be accepted."""
    base = endpoint.rstrip("/")
    url = base if base.endswith(_OTLP_PATH) else base + _OTLP_PATH
    try:
        answer = httpx.post(url, content=b"", headers={"content-type": "application/x-protobuf"}, timeout=10)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"no OTLP receiver at {url} ({error}); start one or mend the endpoint") from error
    if answer.status_code >= 400:
        raise InputError(f"{url} refuses spans with status {answer.status_code}; mend the endpoint")


def _chunks(questions: Iterator[AgentQuestion]) -> Iterator[list[AgentQuestion]]:
    chunk: list[AgentQuestion] = []
    for question in questions:
        chunk.append(question)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _run_all(options: GenerateOptions, progress: Progress) -> GenerateResult:
    traces: list[Trace] = []
    ledger: list[LedgerEntry] = []
    delivered = 0
    progress("running the agent", 0.0)
    # A fresh interpreter each: a forked one would inherit the caller's tracer provider and threads.
    pool = ProcessPoolExecutor(
        options.workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(options,),
    )
    try:
        with pool:
            for rows, spans in pool.map(_run_chunk, _chunks(questions_of(options))):
                traces += [trace for trace, _ in rows]
                ledger += [entry for _, entry in rows]
                delivered += spans
                progress("running the agent", len(traces) / options.questions)
    except BrokenProcessPool as error:
        raise ObserverError("a worker process of the agent died; see the output above and try again") from error
    return GenerateResult(traces, ledger, delivered)


class _Worker:
    """The state of a worker process; the pool gives its functions no other way to share it."""

    options: GenerateOptions
    tracing: Any


def _start_worker(options: GenerateOptions) -> None:
    from observer_pipeline.agent.tracing import install_tracing

    # Odd model behaviour is recorded in the trace; ADK would print it with stack traces as well.
    logging.getLogger("google_adk").setLevel(logging.CRITICAL)
    _Worker.options = options
    _Worker.tracing = install_tracing(
        service_name=options.service_name, project=options.project, endpoint=options.endpoint
    )


def _run_chunk(questions: Sequence[AgentQuestion]) -> tuple[list[tuple[Trace, LedgerEntry]], int]:
    before = _Worker.tracing.delivered
    rows = asyncio.run(_run_questions(questions, _Worker.options))
    _Worker.tracing.flush()
    return rows, _Worker.tracing.delivered - before


async def _run_questions(
    questions: Sequence[AgentQuestion], options: GenerateOptions
) -> list[tuple[Trace, LedgerEntry]]:
    return [await run_question(question, options, options.faults.inject(question)) for question in questions]


async def run_question(
    question: AgentQuestion, options: GenerateOptions, injection: Injection | None
) -> tuple[Trace, LedgerEntry]:
    """Run the agent on one question, with a fault or without, and label the outcome by the gold answer.

    Needs `install_tracing` in this process if the spans are wanted.
    """
    from observer_pipeline.agent.models.early_stop import EarlyStop
    from observer_pipeline.agent.models.offline import OfflineLlm
    from observer_pipeline.agent.runner import Budget, run_agent
    from observer_pipeline.agent.tools import ParagraphIndex, Toolbox

    fault = injection or Injection("none", {})
    model: Any = OfflineLlm(skill="weak" if fault.weak else "strong", seed=options.seed)
    if fault.stop_after is not None:
        model = EarlyStop(model=model.model, inner=model, after=fault.stop_after)
    toolbox = Toolbox(
        ParagraphIndex(question.paragraphs), options.tool_calls, withheld=fault.withheld, altered=fault.altered
    )
    run = await run_agent(
        question.question, model=model, toolbox=toolbox, budget=Budget(options.tool_calls, options.steps)
    )
    gold = gold_label(run.cleaned, question.answer, question.aliases)
    kind = injection.kind if injection else None
    trace = Trace(
        question=run.question,
        final_answer=run.answer,
        trace_id=run.trace_id,
        tool_calls=run.calls,
        evidence=run.evidence,
        label=gold.label,
        qid=question.qid,
        gold_answer=question.answer,
        em=gold.em,
        f1=gold.f1,
        failure_type=kind,
        model="offline-weak" if fault.weak else "offline",
        stop_reason=run.stop_reason,
        steps=run.steps,
        latency_ms=run.latency_ms,
        label_source="gold",
        extra={"cleaned_answer": run.cleaned, "question_type": question.type, "level": question.level},
    )
    return trace, LedgerEntry(run.trace_id, question.qid, kind, injection.details if injection else {})
