"""The test agent's questions and runs as tables of the warehouse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from observer_core.traces.splits import split_of_question
from observer_core.traces.trace import Trace

if TYPE_CHECKING:
    from observer_pipeline.agent.questions import AgentQuestion

QUESTIONS = pa.schema(
    [
        ("qid", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("type", pa.string()),
        ("level", pa.string()),
        ("split", pa.string()),
        ("seed", pa.int64()),
        ("source", pa.string()),  # the file it was read from; null for the generated world
    ]
)
CORPUS = pa.schema([("title", pa.string()), ("text", pa.string()), ("questions", pa.int64())])


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """Which questions the agent is asked: the first `questions` of the generated world, or of the file `source`."""

    questions: int
    seed: int
    source: str | None = None


def load_questions(plan: AgentPlan) -> "list[AgentQuestion]":
    """The questions with their paragraphs.

    Raises:
        InputError: the file cannot be read.
    """
    if plan.source is not None:
        from observer_pipeline.agent.hotpot import read_hotpot

        return read_hotpot(Path(plan.source))[: plan.questions]
    from observer_pipeline.agent.world import generate_world

    return list(generate_world(plan.questions, plan.seed))


def question_table(questions: "Sequence[AgentQuestion]", plan: AgentPlan) -> pa.Table:
    """Questions as rows, with the plan they came from, so that later assets take the same ones."""
    rows = [
        {
            "qid": q.qid,
            "question": q.question,
            "answer": q.answer,
            "type": q.type,
            "level": q.level,
            "split": split_of_question(q.question),
            "seed": plan.seed,
            "source": plan.source,
        }
        for q in questions
    ]
    return pa.Table.from_pylist(rows, schema=QUESTIONS)


def plan_of(table: pa.Table) -> AgentPlan:
    """The plan a table of questions was made by."""
    first = table.slice(0, 1).to_pylist()[0]
    return AgentPlan(table.num_rows, first["seed"], first["source"])


def corpus_table(questions: "Sequence[AgentQuestion]") -> pa.Table:
    """Every paragraph once, with the number of questions that bring it."""
    seen: dict[tuple[str, str], int] = {}
    for question in questions:
        for paragraph in question.paragraphs:
            key = (paragraph.title, paragraph.text)
            seen[key] = seen.get(key, 0) + 1
    rows = [{"title": title, "text": text, "questions": n} for (title, text), n in seen.items()]
    return pa.Table.from_pylist(rows, schema=CORPUS)


def run_agent(
    plan: AgentPlan, *, natural_share: float, workers: int, progress: Callable[[str, float], None] | None = None
) -> list[Trace]:
    """Run the agent once over each question, a share of the runs with a seeded fault; the traces carry gold answers."""
    from observer_pipeline.agent.generate import FaultPlan, GenerateOptions, generate

    options = GenerateOptions(
        questions=plan.questions,
        seed=plan.seed,
        faults=FaultPlan.with_natural_share(natural_share),
        workers=workers,
        source=plan.source,
    )
    return generate(options, out=None, progress=progress).traces
