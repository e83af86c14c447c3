"""`observer agent run|generate|chat`: the test agent from the command line."""

import asyncio
import json
import logging
import random
import sys
from pathlib import Path
from typing import Annotated

import typer

from observer_core.errors import InputError
from observer_core.traces.trace import Trace
from observer_pipeline.cli.progress import progress_bar

Endpoint = Annotated[str | None, typer.Option(help="Export spans by OTLP/HTTP, for example to http://127.0.0.1:4318")]
Hotpotqa = Annotated[
    str | None,
    typer.Option(help="Questions from a HotpotQA file, JSONL, or hub:distractor/validation; else the generated world"),
]
Model = Annotated[str, typer.Option(help="offline, offline-weak, ollama:MODEL or openai:MODEL@URL")]
Project = Annotated[str, typer.Option(help="Project name on the spans")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="The test agent: a question, a batch with seeded faults, a chat, the quality of its data.",
    )
    group.command("run")(run)
    group.command("generate")(generate)
    group.command("chat")(chat)
    group.command("quality")(quality)
    app.add_typer(group, name="agent")


def run(
    question: Annotated[str, typer.Argument(help="What to ask; `observer agent chat` prints samples")],
    endpoint: Endpoint = None,
    hotpotqa: Hotpotqa = None,
    model: Model = "offline",
    project: Project = "observer",
    as_json: AsJson = False,
) -> None:
    """Ask the agent one question over the paragraphs of a sample world, or of a HotpotQA file."""
    from observer_pipeline.agent.chat import all_paragraphs, sample_questions
    from observer_pipeline.agent.endpoint import probe_endpoint
    from observer_pipeline.agent.models.choose import build_model
    from observer_pipeline.agent.questions import Paragraph
    from observer_pipeline.agent.runner import Budget, RunRecord, run_agent
    from observer_pipeline.agent.tools import ParagraphIndex, Toolbox
    from observer_pipeline.agent.tracing import install_tracing

    if not question.strip() or any("\ud800" <= letter <= "\udfff" for letter in question):
        raise InputError("the question is empty or not UTF-8; ask something else")
    paragraphs: list[Paragraph] = all_paragraphs(sample_questions(hotpotqa))
    if endpoint:
        probe_endpoint(endpoint)
    tracing = install_tracing(service_name="observer-agent", project=project, endpoint=endpoint)
    logging.getLogger("google_adk").setLevel(logging.CRITICAL)  # it would print an error that is one line below
    budget = Budget()
    toolbox = Toolbox(ParagraphIndex(paragraphs), budget.tool_calls)
    record: RunRecord = asyncio.run(run_agent(question, model=build_model(model), toolbox=toolbox, budget=budget))
    tracing.flush()
    trace = Trace(
        question=record.question,
        final_answer=record.answer,
        trace_id=record.trace_id,
        tool_calls=record.calls,
        evidence=record.evidence,
        model=model,
        stop_reason=record.stop_reason,
        steps=record.steps,
        latency_ms=record.latency_ms,
        extra={"cleaned_answer": record.cleaned, "odd": list(record.odd)},
    )
    if as_json:
        print(json.dumps(trace.to_json(), ensure_ascii=False))
        return
    for number, call in enumerate(trace.tool_calls, 1):
        print(f"{number}. {call.name}({call.args!r}) -> {call.status}")
    print(record.cleaned or "(no answer)")
    print(f"trace {trace.trace_id}, {record.stop_reason} after {record.steps} model calls", file=sys.stderr)


def generate(
    questions: Annotated[int, typer.Option(min=1, help="How many runs, one per question")],
    out: Annotated[Path, typer.Option(help="New folder for traces.jsonl and ledger.jsonl; a killed batch goes on")],
    faults: Annotated[str, typer.Option(help="natural, seed4, all, or a YAML plan")] = "natural",
    seed: Annotated[int, typer.Option(help="Same seed, same traces")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Index of the first question")] = 0,
    endpoint: Endpoint = None,
    hotpotqa: Hotpotqa = None,
    corpus: Annotated[bool, typer.Option(help="Search all paragraphs of the file, not the question's own")] = False,
    model: Model = "offline",
    weak_model: Annotated[str, typer.Option(help="Model of runs with the fault weak_model")] = "offline-weak",
    spans: Annotated[bool, typer.Option(help="Write the spans as an OTLP file too")] = False,
    reproducible: Annotated[
        bool, typer.Option(help="Ids and times from the seed too; never export these twice")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that run the agent")] = 1,
    project: Project = "observer",
    as_json: AsJson = False,
) -> None:
    """Make labeled traces: gold labels beside the traces, seeded faults in a ledger, never in the spans."""
    from observer_pipeline.agent.faults import FaultPlan
    from observer_pipeline.agent.generate import LEDGER_FILE, SPANS_FILE, TRACES_FILE, GenerateOptions, generate_into

    options = GenerateOptions(
        questions=questions,
        seed=seed,
        faults=FaultPlan.parse(faults, seed=seed),
        workers=workers,
        endpoint=endpoint,
        project=project,
        source=hotpotqa,
        first=first,
        whole_corpus=corpus,
        model=model,
        weak_model=weak_model,
        reproducible=reproducible,
    )
    with progress_bar() as progress:
        summary = generate_into(out, options, spans=spans, progress=progress)
    files = [str(out / name) for name in (TRACES_FILE, LEDGER_FILE, *([SPANS_FILE] if spans else []))]
    if as_json:
        print(json.dumps({"traces": summary.traces, "labels": summary.labels,
                          "spans_delivered": summary.spans_delivered, "files": files}))  # fmt: skip
        return
    print(f"{summary.traces} traces in {files[0]}, their faults in {files[1]}")
    for fault in ("natural", *sorted(summary.labels.keys() - {"natural"})):
        counts = summary.labels.get(fault, {})
        print(f"  {fault}: {', '.join(f'{counts.get(label, 0)} {label}' for label in ('correct', 'partial', 'wrong'))}")
    if endpoint:
        print(f"{summary.spans_delivered} spans delivered to {endpoint}")


def chat(
    port: Annotated[int, typer.Option(help="Port of the chat UI on loopback")] = 8000,
    endpoint: Endpoint = "http://127.0.0.1:4318",
    hotpotqa: Hotpotqa = None,
    model: Model = "offline",
    project: Project = "observer",
    export: Annotated[bool, typer.Option(help="Export the spans of every message")] = True,
) -> None:
    """Open ADK's chat UI on the agent; every message becomes a trace, exported to the endpoint."""
    from observer_pipeline.agent.chat import sample_questions, serve_chat

    samples = sample_questions(hotpotqa)
    where = f"spans go to {endpoint}" if export else "no export"

    def announce() -> None:
        print(f"Chat: http://127.0.0.1:{port}  ({where}; Ctrl-C stops)\nAsk for example:")
        for question in random.Random(0).sample(samples, min(6, len(samples))):
            print(f"  {question.question}")
        sys.stdout.flush()

    target = endpoint if export else None
    serve_chat(port, endpoint=target, project=project, source=hotpotqa, model=model, announce=announce)


def quality(
    source: Annotated[str, typer.Argument(help="Labeled traces: JSONL, a folder, or phoenix://host:port/project")],
    out: Annotated[Path, typer.Option(help="New folder for quality.md, quality.html and quality.json")],
    spans: Annotated[Path | None, typer.Option(help="Their OTLP span file, for the leakage probe")] = None,
    as_json: AsJson = False,
) -> None:
    """Report on labeled traces: balance, leaks, duplicates, doubtful labels, and baselines that must fail.

    Exits 0 whatever is found: the problems are in the report.
    """
    from observer_core.traces.otlp import read_otlp_file, split_by_trace
    from observer_pipeline.agent.quality.report import REPORT_HTML, examine, write_quality
    from observer_pipeline.sources import load_traces

    if out.exists():
        raise InputError(f"{out} exists already; choose another folder or remove it first")
    groups = [group for request in read_otlp_file(spans) for group in request.resource_spans] if spans else []
    by_trace = {trace_id.hex(): found for trace_id, found in split_by_trace(groups).items()}
    traces = load_traces(source)
    if spans and not by_trace.keys() & {trace.trace_id for trace in traces}:
        raise InputError(f"{spans} holds the spans of no trace of {source}; give the spans.pb written with them")
    with progress_bar() as progress:
        found = examine(traces, title=f"Data quality: {Path(source).name}", spans=by_trace, progress=progress)
    write_quality(out, found)
    if as_json:
        print(json.dumps(found.to_json()))
        return
    for name, guessed in found.surface.items():
        print(f"label guessed from {name}: {guessed}, {found.verdict(name)}")
    for problem in found.problems:
        print(f"- {problem}")
    print(f"{found.n} labeled traces, {len(found.problems)} problems; see {out / REPORT_HTML}")
