"""The test agent's questions and runs as tables of the warehouse."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from observer_core.traces.labels import gold_label
from observer_core.traces.splits import split_of_question
from observer_core.traces.trace import Trace

if TYPE_CHECKING:
    from observer_pipeline.agent.generate import GenerateOptions
    from observer_pipeline.agent.questions import AgentQuestion

QUESTIONS = pa.schema(
    [
        ("qid", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("aliases", pa.list_(pa.string())),
        ("type", pa.string()),
        ("level", pa.string()),
        ("split", pa.string()),
        ("seed", pa.int64()),
        ("first", pa.int64()),
        ("source", pa.string()),  # the file it was read from; null for the generated world
    ]
)
CORPUS = pa.schema([("title", pa.string()), ("text", pa.string()), ("questions", pa.int64())])
GOLD_LABELS = pa.schema([("trace_id", pa.string()), ("em", pa.bool_()), ("f1", pa.float64()), ("label", pa.string())])


def question_table(questions: "Iterable[AgentQuestion]", options: "GenerateOptions") -> pa.Table:
    """Questions as rows, with the options they came from, so that later assets take the same ones."""
    rows = [
        {
            "qid": q.qid,
            "question": q.question,
            "answer": q.answer,
            "aliases": list(q.aliases),
            "type": q.type,
            "level": q.level,
            "split": split_of_question(q.question),
            "seed": options.seed,
            "first": options.first,
            "source": options.source,
        }
        for q in questions
    ]
    return pa.Table.from_pylist(rows, schema=QUESTIONS)


def options_of(table: pa.Table, **others: Any) -> "GenerateOptions":
    """The options a table of questions was made by, with `others` added."""
    from observer_pipeline.agent.generate import GenerateOptions

    row = table.slice(0, 1).to_pylist()[0]
    return GenerateOptions(table.num_rows, row["seed"], first=row["first"], source=row["source"], **others)


def corpus_table(questions: "Iterable[AgentQuestion]") -> pa.Table:
    """Every paragraph once, with the number of questions that bring it."""
    seen: dict[tuple[str, str], int] = {}
    for question in questions:
        for paragraph in question.paragraphs:
            key = (paragraph.title, paragraph.text)
            seen[key] = seen.get(key, 0) + 1
    rows = [{"title": title, "text": text, "questions": n} for (title, text), n in seen.items()]
    return pa.Table.from_pylist(rows, schema=CORPUS)


def gold_table(traces: Sequence[Trace], questions: pa.Table) -> pa.Table:
    """HotpotQA's comparison of each answer with its gold answer, or with whichever alias fits best."""
    aliases = dict(zip(questions["qid"].to_pylist(), questions["aliases"].to_pylist(), strict=True))
    rows = []
    for trace in traces:
        if trace.gold_answer is None:
            continue
        answer = trace.extra.get("cleaned_answer", trace.final_answer)
        gold = gold_label(answer, trace.gold_answer, aliases.get(trace.qid, ()))
        rows.append({"trace_id": trace.trace_id, "em": gold.em, "f1": gold.f1, "label": gold.label})
    return pa.Table.from_pylist(rows, schema=GOLD_LABELS)
