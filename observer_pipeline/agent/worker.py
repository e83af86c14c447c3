"""A worker process of a batch: runs pieces, keeps their spans, sends them."""

import asyncio
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observer_core.errors import ObserverError
from observer_core.traces.trace import Trace
from observer_pipeline.agent.endpoint import post_spans
from observer_pipeline.agent.labeled_run import LedgerEntry, run_question
from observer_pipeline.agent.options import GenerateOptions, questions_of
from observer_pipeline.agent.pieces import PIECE, Pieces
from observer_pipeline.agent.questions import AgentQuestion
from observer_pipeline.agent.world import world_question

if TYPE_CHECKING:
    from observer_pipeline.agent.tracing import RunSpans

_SPACING_S = 30
"""Seeded runs begin this far apart."""
_TRIES = 6


class _Worker:
    """The state of this process; the pool gives its functions no other way to share it."""

    options: GenerateOptions
    pieces: Pieces
    kept: "RunSpans"
    questions: Sequence[AgentQuestion] | None
    index: Any


def start_worker(options: GenerateOptions, folder: Path, spans: bool) -> None:
    """Make this process ready: tracing into memory, the questions of a file, the index of a common corpus."""
    _end_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    from observer_pipeline.agent.tools import ParagraphIndex
    from observer_pipeline.agent.tracing import RunSpans, install_tracing

    # Odd model behaviour is recorded in the trace; ADK would print it with stack traces as well.
    logging.getLogger("google_adk").setLevel(logging.CRITICAL)
    _Worker.options = options
    _Worker.pieces = Pieces(folder, -(-options.questions // PIECE), spans)
    _Worker.kept = RunSpans()
    install_tracing(
        service_name=options.service_name,
        project=options.project,
        processors=[_Worker.kept],
        instance=f"{options.service_name}-{options.seed}" if options.reproducible else None,
    )
    _Worker.questions = list(questions_of(options)) if options.source is not None else None
    _Worker.index = None
    if options.whole_corpus:
        paragraphs = {p.title: p for question in _Worker.questions or () for p in question.paragraphs}
        _Worker.index = ParagraphIndex(list(paragraphs.values()))


def run_piece(number: int) -> int:
    """Run a piece, or only send it if its runs are there already.

    Raises:
        ObserverError: the model failed, or the spans were not accepted.
    """
    pieces, options = _Worker.pieces, _Worker.options
    if not pieces.has_run(number):
        rows, requests = asyncio.run(_run_piece(number))
        pieces.write(number, rows, requests if options.endpoint or pieces.spans else [])
    delivered = _send(pieces.requests(number), options.endpoint) if options.endpoint else 0
    pieces.finish(number, delivered)
    return number


async def _run_piece(
    number: int,
) -> tuple[list[tuple[Trace, LedgerEntry]], list[ExportTraceServiceRequest]]:
    options = _Worker.options
    rows, requests = [], []
    for offset in range(number * PIECE, min((number + 1) * PIECE, options.questions)):
        question = _question(offset)
        row = await run_question(question, options, options.faults.inject(question), index=_Worker.index)
        requests.append(_spans_of(row[0], offset))
        rows.append(row)
    return rows, requests


def _question(offset: int) -> AgentQuestion:
    if _Worker.questions is not None:
        return _Worker.questions[offset]
    return world_question(_Worker.options.seed, _Worker.options.first + offset)


def _spans_of(trace: Trace, offset: int) -> ExportTraceServiceRequest:
    """The spans of a run; in a reproducible batch with times of the seed, which the trace's latency follows."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    from observer_pipeline.agent.clock import retime
    from observer_pipeline.agent.tracing import SEEDED_EPOCH_S

    options = _Worker.options
    spans, order = _Worker.kept.take(str(trace.trace_id))
    encoded = encode_spans(spans)
    request = ExportTraceServiceRequest(resource_spans=encoded.resource_spans)
    if options.reproducible:
        start = int((SEEDED_EPOCH_S + (options.first + offset) * _SPACING_S) * 1e9)
        rng = random.Random(f"times:{options.seed}:{trace.qid}")
        trace.latency_ms = round(retime(request.resource_spans, order, rng=rng, start_ns=start), 3)
    return request


def _send(requests: Sequence[ExportTraceServiceRequest], endpoint: str) -> int:
    """Send the spans; a receiver that is busy or gone for a moment is asked again."""
    merged = ExportTraceServiceRequest()
    for request in requests:
        merged.MergeFrom(request)
    count = sum(len(ss.spans) for group in merged.resource_spans for ss in group.scope_spans)
    for attempt in range(_TRIES):
        try:
            status = post_spans(endpoint, merged.SerializeToString())
        except httpx.HTTPError as error:
            problem = str(error)
        else:
            if status < 400:
                return count
            problem = f"status {status}"
            if status < 500 and status not in (408, 429):
                break
        if attempt + 1 < _TRIES:
            time.sleep(0.25 * 2**attempt)
    raise ObserverError(f"{count} spans did not arrive at {endpoint} ({problem}); is a receiver running there?")


def _end_with_the_parent() -> None:
    """A worker whose parent was killed must not go on: the batch may be resumed at once."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
