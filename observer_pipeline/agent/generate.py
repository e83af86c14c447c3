"""Labeled traces in bulk: questions from the generated world or a data set, run by the agent, some with seeded faults.

The agent runs in processes of its own, so that its global tracer provider and the instrumentation of ADK stay out of
the caller. What was run lies in a work folder piece by piece, each piece whole: a batch that was killed goes on where
it stopped, repeats nothing, and needs no more memory for a million runs than for ten.
"""

import itertools
import json
import multiprocessing
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from observer_core.errors import InputError, ObserverError
from observer_core.files import whole_dir
from observer_core.traces.jsonl import read_jsonl
from observer_core.traces.trace import Trace
from observer_pipeline.agent.endpoint import probe_endpoint
from observer_pipeline.agent.labeled_run import LedgerEntry
from observer_pipeline.agent.options import GenerateOptions, questions_of
from observer_pipeline.agent.pieces import Pieces
from observer_pipeline.agent.worker import run_piece, start_worker

__all__ = ["GenerateOptions", "GenerateResult", "Summary", "generate", "generate_into", "questions_of"]

Progress = Callable[[str, float], None]
TRACES_FILE = "traces.jsonl"
LEDGER_FILE = "ledger.jsonl"
SPANS_FILE = "spans.pb"
_AHEAD = 2
"""Pieces waiting per worker, so that none idles and none piles up."""


@dataclass(slots=True)
class Summary:
    """What a batch made: traces by (fault or `natural`, label), and how many spans the endpoint accepted."""

    traces: int = 0
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    spans_delivered: int = 0

    def count(self, trace: Trace) -> None:
        """Enter a trace."""
        self.traces += 1
        self.labels.setdefault(trace.failure_type or "natural", Counter())[str(trace.label)] += 1


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """The labeled traces in the order of their questions, their ledger, and how many spans the endpoint accepted."""

    traces: list[Trace]
    ledger: list[LedgerEntry]
    spans_delivered: int


def generate(options: GenerateOptions, *, progress: Progress | None = None) -> GenerateResult:
    """Run the agent on some questions and hand back the labeled traces; for many, use `generate_into`.

    Args:
        progress: told (what is being done, fraction done) after every few runs.

    Raises:
        InputError: unusable options, question source, model or endpoint.
        ObserverError: spans could not be delivered, the model failed, or a worker died.
    """
    with tempfile.TemporaryDirectory(prefix="observer-agent-") as folder:
        summary = generate_into(Path(folder) / "out", options, progress=progress)
        traces = read_jsonl(Path(folder) / "out" / TRACES_FILE)
        ledger = [
            LedgerEntry(**json.loads(line))
            for line in (Path(folder) / "out" / LEDGER_FILE).read_text("utf-8").splitlines()
        ]
    return GenerateResult(traces, ledger, summary.spans_delivered)


def generate_into(
    out: Path, options: GenerateOptions, *, spans: bool = False, progress: Progress | None = None
) -> Summary:
    """Run the agent on many questions and write what it did to a new folder, which appears whole.

    Until then the work lies beside it in `<out>.partial`; the same call goes on from there.

    Args:
        out: the folder for `traces.jsonl` (labeled traces), `ledger.jsonl` (faults) and `spans.pb`.
        spans: write the spans as an OTLP file as well.
        progress: told (what is being done, fraction done) after every few runs.

    Raises:
        InputError: unusable options, question source, model or endpoint; `out` exists; the work folder is another
            batch's, or in use.
        ObserverError: spans could not be delivered, the model failed, or a worker died.
    """
    options.check()
    if out.exists():
        raise InputError(f"{out} exists already; choose another folder or remove it first")
    if options.endpoint:
        probe_endpoint(options.endpoint)
    next(questions_of(options))  # an unusable source is refused before any process starts
    partial = out.with_name(f"{out.name}.partial")
    with Pieces.open(partial, options, spans=spans) as pieces:
        _run(pieces, options, progress or (lambda _what, _fraction: None))
        summary = _gather(pieces, out, spans=spans)
    shutil.rmtree(partial)
    return summary


def _run(pieces: Pieces, options: GenerateOptions, progress: Progress) -> None:
    """Run all pieces that are not done, a few ahead of the workers."""
    missing = iter([number for number in range(pieces.count) if not pieces.is_done(number)])
    done = sum(pieces.is_done(number) for number in range(pieces.count))
    progress("running the agent", done / pieces.count)
    if done == pieces.count:
        return
    # A fresh interpreter each: a forked one would inherit the caller's tracer provider and threads.
    pool = ProcessPoolExecutor(
        min(options.workers, pieces.count - done),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(options, pieces.folder, pieces.spans),
    )
    waiting: set[Future[int]] = set()
    try:
        for number in itertools.islice(missing, options.workers * _AHEAD):
            waiting.add(pool.submit(run_piece, number))
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                done += 1
                future.result()
                waiting.update(pool.submit(run_piece, number) for number in itertools.islice(missing, 1))
            progress("running the agent", done / pieces.count)
    except BrokenProcessPool as error:
        raise ObserverError(
            "a worker process of the agent died; see the output above; the same command goes on where it stopped"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _gather(pieces: Pieces, out: Path, *, spans: bool) -> Summary:
    """Join the pieces, one after another, into the files of `out`."""
    summary = Summary()
    with whole_dir(out) as folder:
        with (
            (folder / TRACES_FILE).open("w", encoding="utf-8") as traces,
            (folder / LEDGER_FILE).open("w", encoding="utf-8") as ledger,
        ):
            for number in range(pieces.count):
                for trace, entry in pieces.read(number):
                    traces.write(json.dumps(trace, ensure_ascii=False) + "\n")
                    ledger.write(json.dumps(entry, ensure_ascii=False) + "\n")
                    summary.count(Trace.from_json(trace))
                summary.spans_delivered += pieces.delivered(number)
        if spans:
            with (folder / SPANS_FILE).open("wb") as stream:
                for number in range(pieces.count):
                    stream.write(pieces.span_file(number).read_bytes())
    return summary
