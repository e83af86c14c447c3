"""One labeled run: the agent on one question, with a fault or without, judged by the gold answer."""

from dataclasses import dataclass
from typing import Any

from observer_core.traces.label_checks import label_doubts
from observer_core.traces.labels import gold_label, supporting_coverage
from observer_core.traces.trace import Trace
from observer_pipeline.agent.faults import Injection
from observer_pipeline.agent.options import GenerateOptions
from observer_pipeline.agent.questions import AgentQuestion


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The truth about one run, kept beside its trace.

    `fault` is the fault injected into it, if any; `disturbance` the fault that a harmless disturbance looks like.
    """

    trace_id: str
    qid: str
    fault: str | None
    details: dict[str, Any]
    disturbance: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "trace_id": self.trace_id,
            "qid": self.qid,
            "fault": self.fault,
            "disturbance": self.disturbance,
            "details": self.details,
        }


async def run_question(
    question: AgentQuestion, options: GenerateOptions, injection: Injection | None, *, index: Any = None
) -> tuple[Trace, LedgerEntry]:
    """Run the agent on one question and label the outcome by the gold answer.

    Needs `install_tracing` in this process if the spans are wanted.

    Args:
        index: a `ParagraphIndex` to search; over the question's own paragraphs when None.
    """
    from observer_pipeline.agent.models.choose import build_model
    from observer_pipeline.agent.runner import Budget, run_agent
    from observer_pipeline.agent.tools import ParagraphIndex, Toolbox

    done = injection or Injection("none", {})
    fault = done.kind if injection and not done.harmless else None
    spec = options.weak_model if done.weak else options.model
    # One thing goes wrong in a seeded run: of two mistakes over a yes or no the second would put the first right.
    model = build_model(spec, seed=options.seed, errs=fault is None or done.weak)
    if done.model is not None:
        model = done.model(model)
    toolbox = Toolbox(
        index or ParagraphIndex(question.paragraphs),
        options.tool_calls,
        pages=done.pages,
        late=done.late,
        results=done.results,
    )
    run = await run_agent(
        question.question,
        model=model,
        toolbox=toolbox,
        budget=Budget(options.tool_calls, options.steps),
        history=done.history,
        seed=f"{options.seed}:{question.qid}" if options.reproducible else None,
    )
    gold = gold_label(run.cleaned, question.answer, question.aliases)
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
        failure_type=fault,
        model=spec,
        stop_reason=run.stop_reason,
        steps=run.steps,
        latency_ms=run.latency_ms,
        label_source="gold",
        extra={
            "cleaned_answer": run.cleaned,
            "question_type": question.type,
            "level": question.level,
            "supporting_coverage": supporting_coverage(run.evidence, question.supporting_texts),
            "label_doubts": label_doubts(run.cleaned, question.answer, question.aliases, evidence=run.evidence),
            "odd": list(run.odd),
            **({"gold_aliases": list(question.aliases)} if question.aliases else {}),
        },
    )
    disturbance = done.kind if done.harmless else None
    return trace, LedgerEntry(run.trace_id, question.qid, fault, done.details, disturbance)
