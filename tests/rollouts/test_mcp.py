"""`observer mcp` asked by the official client over a real pipe."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, rewards_for
from observer_core.rollouts.store import write_store
from observer_core.rollouts.story import Story
from observer_core.spool_tables import DECISION_SCHEMA

mcp = pytest.importorskip("mcp")


@pytest.fixture(scope="module")
def home(story_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    log = RolloutLog(story_path)
    write_store(log, rewards_for(log), home / "warehouse" / "rollout_spans" / "run=run-7", GradeOptions(workers=1))
    row: dict[str, Any] = {f.name: None for f in DECISION_SCHEMA} | {"trace_id": "ab" * 16, "decision": "keep"}
    row |= {"reason": "score", "p_wrong": 0.9, "keep_probability": 1.0}
    (home / "spool" / "decisions").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row], DECISION_SCHEMA), home / "spool" / "decisions" / "d1.parquet")
    return home


def ask(home: Path, calls: list[tuple[str, dict[str, Any]]], *arguments: str) -> list[tuple[bool, Any]]:
    """Start the server, make the calls, and give for each whether it failed and what it said."""
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "observer_pipeline.cli", "mcp", *arguments],
        env={**os.environ, "OBSERVER_HOME": str(home)},
    )

    async def run() -> list[tuple[bool, Any]]:
        out = []
        async with mcp.Client(mcp.stdio_client(parameters)) as client:
            for tool, given in calls:
                if tool == "list":
                    out.append((False, [t.name for t in (await client.list_tools()).tools]))
                    continue
                result = await client.call_tool(tool, given)
                text = "".join(getattr(part, "text", "") for part in result.content)
                out.append(
                    (bool(result.is_error), text if result.is_error else result.structured_content or json.loads(text))
                )
        return out

    return asyncio.run(run())


def test_an_assistant_finds_its_way_and_gets_its_answer(home: Path, story: Story):
    answers = ask(
        home,
        [
            ("list", {}),
            ("tables", {}),
            ("questions", {}),
            ("ask", {"question": "overconfident_and_bad"}),
            ("ask", {"question": "overconfident_and_bad", "parameters": {"quality": 0.0}}),
            ("ask", {"question": "decisions_by_reason"}),
            ("query", {"sql": "SELECT count(*) AS n FROM completions"}),
        ],
    )
    assert not any(failed for failed, _ in answers)
    tools, tables, questions, bad, none, decisions, count = (value for _, value in answers)
    assert set(tools) == {"tables", "questions", "ask", "query"}
    columns = {t["table"]: t["columns"] for t in tables["result"]}
    assert {"decisions", "spans", "completions", "completion_rewards"} <= set(columns)
    assert columns["decisions"]["p_wrong"] == "DOUBLE"
    assert {"overconfident_and_bad", "most_suspicious_traces"} <= {q["question"] for q in questions["result"]}
    assert {row[0] for row in bad["rows"][:2]} == set(story.tasks)
    assert none["rows"] == []
    assert decisions["rows"][0][:3] == ["keep", "score", 1]
    assert count["rows"] == [[1600]]


def test_writes_files_endless_queries_and_injections_are_refused(home: Path):
    calls: list[tuple[str, dict[str, Any]]] = [
        ("query", {"sql": "DROP VIEW completions"}),
        ("query", {"sql": f"COPY (SELECT 1) TO '{home}/out.csv'"}),
        ("query", {"sql": "SELECT * FROM read_text('/etc/passwd')"}),
        ("query", {"sql": "SELECT 1; DELETE FROM decisions"}),
        ("query", {"sql": "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x FROM r) SELECT count(*) FROM r"}),
        ("ask", {"question": "x'; DROP VIEW completions; --"}),
        ("ask", {"question": "overconfident_and_bad", "parameters": {"quality; DROP VIEW spans": 1}}),
        ("ask", {"question": "overconfident_and_bad", "parameters": {"quality": "1); DROP VIEW spans; --"}}),
        ("query", {"sql": "SELECT count(*) AS n FROM completions"}),
    ]
    *refused, last = ask(home, calls, "--seconds", "1")
    assert [failed for failed, _ in refused] == [True] * len(refused)
    assert "only one SELECT" in refused[0][1]
    assert "root:" not in refused[2][1]
    assert "more than 1 s" in refused[4][1]
    assert not (home / "out.csv").exists()
    assert last == (False, {"columns": ["n"], "rows": [[1600]], "truncated": None})


def test_without_records_it_says_how_to_get_some(tmp_path: Path):
    ((failed, text),) = ask(tmp_path, [("tables", {})])
    assert failed
    assert "observer rollouts query LOG" in text
