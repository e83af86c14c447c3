"""Group `traces`: questions, the paragraphs they are answered from, and the test agent's runs."""

import dagster as dg
from pydantic import Field

from observer_pipeline.agent_runs import AgentPlan, corpus_table, load_questions, plan_of, question_table, run_agent
from observer_pipeline.progress import log_progress
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.tables import markdown, traces_table

GROUP = "traces"
OWNERS = ["team:observer"]


class QuestionsConfig(dg.Config):
    """Which questions the test agent is asked."""

    questions: int = Field(default=400, description="how many questions of the generated world, or of the file")
    seed: int = Field(default=0, description="seed of the generated world and of the faults")
    source: str | None = Field(default=None, description="a file in HotpotQA's shape instead of the generated world")


class AgentTracesConfig(dg.Config):
    """How the test agent is run."""

    natural_share: float = Field(default=0.5, description="share of runs without a seeded fault")
    workers: int = Field(default=1, description="agent processes side by side")


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "parquet"})
def questions(config: QuestionsConfig, warehouse: Warehouse) -> dg.MaterializeResult:
    """User questions with gold answers: a generated multi-hop world of invented facts, or HotpotQA's own records."""
    plan = AgentPlan(config.questions, config.seed, config.source)
    table = question_table(load_questions(plan), plan)
    warehouse.write("questions", table)
    shown = table.select(["qid", "question", "answer", "type", "split"]).slice(0, 10).to_pylist()
    return dg.MaterializeResult(
        metadata={"dagster/row_count": table.num_rows, "examples": dg.MetadataValue.md(markdown(shown))}
    )


@dg.asset(group_name=GROUP, owners=OWNERS, kinds={"python", "parquet"}, deps=[questions])
def corpus(warehouse: Warehouse) -> dg.MaterializeResult:
    """The paragraphs the agent may search, each once: title, text, and how many questions bring it."""
    table = corpus_table(load_questions(plan_of(warehouse.read("questions"))))
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
    traces = run_agent(
        plan_of(warehouse.read("questions")),
        natural_share=config.natural_share,
        workers=config.workers,
        progress=log_progress(context, "agent"),
    )
    warehouse.write("agent_traces", traces_table(traces))
    counts = warehouse.query(
        "SELECT coalesce(failure_type, 'natural') AS fault, count(*) AS runs FROM agent_traces GROUP BY 1 ORDER BY 1"
    ).to_pylist()
    return dg.MaterializeResult(
        metadata={"dagster/row_count": len(traces), "faults": dg.MetadataValue.md(markdown(counts))}
    )
