"""`observer mcp`: a read-only MCP server over live decisions, traces and rollouts, on standard input and output.

Four tools: which tables there are, which ready-made questions, ask one of those, or one bounded SELECT. Nothing here
writes, and SQL runs in `observer_core.rollouts.sql`: no files, no network, limits on time, rows, bytes and memory.
"""

from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from observer_core.errors import InputError, ObserverError
from observer_core.home import Home
from observer_core.rollouts.ready import QUESTIONS, Question
from observer_core.rollouts.sql import BoundedSql, Limits
from observer_core.rollouts.store import VIEWS

INSTRUCTIONS = (
    "Observer's records, read-only: which agent traces were kept or dropped and why (decisions, traces), and what "
    "happened in RL training runs (completions, rewards, completion_rewards, steps, spans). "
    "Start with `tables`; `questions` lists ready-made ones."
)

LIVE_QUESTIONS: dict[str, Question] = {
    "decisions_by_reason": Question(
        "Why were traces kept or dropped?",
        """SELECT decision, reason, count(*) AS traces, avg(p_wrong) AS mean_p_wrong, avg(keep_probability) AS
        keep_probability
           FROM decisions GROUP BY ALL ORDER BY traces DESC""",
    ),
    "most_suspicious_traces": Question(
        "Which traces are most likely wrong?",
        """SELECT trace_id, p_wrong, decision, reason, project, model, decided_at FROM decisions
           WHERE p_wrong >= $p_wrong ORDER BY p_wrong DESC""",
        {"p_wrong": 0.5},
    ),
}
_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)


def tables_of(home: Home) -> dict[str, list[Path]]:
    """Every table there is: the warehouse's folders, the spool's, and `spans` of the stored rollouts."""
    tables: dict[str, list[Path]] = {}
    for root in (home.spool, home.warehouse):
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            if folder.is_dir() and any(folder.rglob("*.parquet")):
                name = "spans" if folder.name == "rollout_spans" else folder.name
                tables.setdefault(name, []).append(folder)
    return tables


class Records:
    """The tables of one home, opened on the first question and again when new tables appear."""

    def __init__(self, home: Home, limits: Limits) -> None:
        self._home, self._limits = home, limits
        self._tables: dict[str, list[Path]] = {}
        self._sql: BoundedSql | None = None

    def close(self) -> None:
        if self._sql is not None:
            self._sql.close()

    @property
    def names(self) -> list[str]:
        """Tables and views that can be asked now."""
        self._open()
        return [*self._tables, *(VIEWS if "spans" in self._tables else ())]

    def questions(self) -> dict[str, Question]:
        """The ready-made questions that the tables can answer."""
        names = self.names
        found = dict(QUESTIONS) if "spans" in names else {}
        return found | (LIVE_QUESTIONS if "decisions" in names else {})

    def query(self, sql: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer as JSON.

        Raises:
            InputError: no records yet, or a query that is refused.
        """
        answer = self._open().query(sql, parameters)
        return {"columns": answer.columns, "rows": answer.rows, "truncated": answer.truncated}

    def _open(self) -> BoundedSql:
        tables = tables_of(self._home)
        if self._sql is None or tables != self._tables:
            if not tables:
                raise InputError(
                    f"no records under {self._home.root} yet; run the service, or `observer rollouts query LOG`"
                )
            self.close()
            views = VIEWS if "spans" in tables else {}
            self._tables, self._sql = tables, BoundedSql(tables, views, self._limits)
        return self._sql


def build_server(home: Home, limits: Limits | None = None) -> MCPServer:
    """The server; run it with `.run("stdio")`."""
    records = Records(home, limits or Limits())
    server: MCPServer = MCPServer("observer", instructions=INSTRUCTIONS)

    def answered(call: Any) -> Any:
        try:
            return call()
        except ObserverError as error:
            raise ToolError(str(error)) from error

    @server.tool(annotations=_READ_ONLY)
    def tables() -> list[dict[str, Any]]:
        """The tables and views, with their columns and types. Maps: text['hack.signature'], number['reward.score']."""

        def describe() -> list[dict[str, Any]]:
            found = []
            for name in records.names:
                rows = records.query(f'DESCRIBE "{name}"')["rows"]
                found.append({"table": name, "columns": {row[0]: row[1] for row in rows}})
            return found

        return answered(describe)

    @server.tool(annotations=_READ_ONLY)
    def questions() -> list[dict[str, Any]]:
        """The ready-made questions: name, what it answers, parameters with their defaults."""
        return answered(
            lambda: [
                {"question": name, "asks": q.asks, "parameters": q.parameters}
                for name, q in records.questions().items()
            ]
        )

    @server.tool(annotations=_READ_ONLY)
    def ask(
        question: Annotated[str, Field(description="Name of a ready-made question")],
        parameters: Annotated[dict[str, float] | None, Field(description="Values in place of the defaults")] = None,
    ) -> dict[str, Any]:
        """Answer a ready-made question."""

        def run() -> dict[str, Any]:
            known = records.questions()
            if question not in known:
                raise InputError(f"no question {question!r}; there are: {', '.join(known)}")
            chosen = known[question]
            unknown = set(parameters or {}) - set(chosen.parameters)
            if unknown:
                raise InputError(
                    f"{question} has no parameter {', '.join(sorted(unknown))}; it has: {chosen.parameters}"
                )
            return records.query(chosen.sql, {**chosen.parameters, **(parameters or {})})

        return answered(run)

    @server.tool(annotations=_READ_ONLY)
    def query(sql: Annotated[str, Field(description="One SELECT in DuckDB's dialect")]) -> dict[str, Any]:
        """Run one read-only SELECT, bounded in time and rows; `truncated` says what was cut."""
        return answered(lambda: records.query(sql))

    return server
