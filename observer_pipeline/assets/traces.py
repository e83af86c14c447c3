"""Group `traces`: questions, the paragraphs they are answered from, and the test agent's runs."""

import dagster as dg
from pydantic import Field

from observer_pipeline.agent_runs import corpus_table, options_of, question_table
from observer_pipeline.progress import log_progress
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import markdown, traces_table

GROUP = "traces"
OWNERS = ["team:observer"]


class QuestionsConfig(dg.Config):
    """Which questions the test agent is asked."""

    questions: int = Field(default=400, description="how many questions of the generated world, or of the file")
    seed: int = Field(default=0, description="seed of the generated world and of the offline model's manners")
    first: int = Field(default=0, description="index of the first question")
    source: str | None = Field(default=None, description="a file in HotpotQA's shape instead of the generated world")


class AgentTracesConfig(dg.Config):
    """How the test agent is run."""

    faults: str = Field(default="seed4", description="fault plan: natural, seed4, or a YAML file")
    workers: int = Field(default=2, description="agent processes side by side")


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "parquet"})
def questions(config: QuestionsConfig, warehouse: Warehouse) -> dg.MaterializeResult:
    """User questions with gold answers: a generated multi-hop world of invented facts, or HotpotQA's own records."""
    from observer_pipeline.agent.generate import GenerateOptions, questions_of

    options = GenerateOptions(config.questions, config.seed, first=config.first, source=config.source)
    table = question_table(questions_of(options), options)
    warehouse.write("questions", table)
    shown = table.select(["qid", "question", "answer", "type", "split"]).slice(0, 10).to_pylist()
    return dg.MaterializeResult(
        metadata={"dagster/row_count": table.num_rows, "examples": dg.MetadataValue.md(markdown(shown))}
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "parquet"}, deps=[questions])
def corpus(warehouse: Warehouse) -> dg.MaterializeResult:
    """The paragraphs the agent may search, each once: title, text, and how many questions bring it."""
    from observer_pipeline.agent.generate import questions_of

    table = corpus_table(questions_of(options_of(warehouse.read("questions"))))
    warehouse.write("corpus", table)
    shown = table.slice(0, 10).to_pylist()
    return dg.MaterializeResult(
        metadata={"dagster/row_count": table.num_rows, "examples": dg.MetadataValue.md(markdown(shown))}
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "parquet"}, deps=[questions, corpus])
def agent_traces(
    context: dg.AssetExecutionContext, config: AgentTracesConfig, warehouse: Warehouse
) -> dg.MaterializeResult:
    """Runs of the test agent, some with a seeded fault, which is known here and never in the state."""
    from observer_pipeline.agent.faults import FaultPlan
    from observer_pipeline.agent.generate import generate

    table = warehouse.read("questions")
    options = options_of(table, faults=FaultPlan.parse(config.faults), workers=config.workers)
    traces = generate(options, progress=log_progress(context, "agent")).traces
    warehouse.write("agent_traces", traces_table(traces))
    counts = warehouse.query(
        "SELECT coalesce(failure_type, 'natural') AS fault, count(*) AS runs FROM agent_traces GROUP BY 1 ORDER BY 1"
    ).to_pylist()
    return dg.MaterializeResult(
        metadata={"dagster/row_count": len(traces), "faults": dg.MetadataValue.md(markdown(counts))}
    )
