"""The queries of `deploy/signoz/`: read from its files, taken apart, and asked of spans in memory."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "signoz"
RULES = sorted((FOLDER / "alerts").glob("*.json"))
Json = dict[str, Any]


INTRINSIC: dict[str, type] = {"timestamp": int, "trace_id": str, "name": str}
"""Columns of a span that are no attributes, and their type as we send them."""


@dataclass
class Query:
    """One builder query and the panel or alert it belongs to."""

    owner: str
    spec: Json
    raw: bool = False


@dataclass
class Condition:
    key: str
    operator: str
    value: str | float | None


def dashboard() -> Json:
    return json.loads((FOLDER / "dashboard.json").read_text())


def rule(path: Path) -> Json:
    return json.loads(path.read_text())


def envelopes(plugin: Json) -> list[Json]:
    if plugin["kind"] == "signoz/CompositeQuery":
        return plugin["spec"]["queries"]
    return [{"type": "builder_query", "spec": plugin["spec"]}]


def panels() -> Iterator[tuple[str, Json, Json]]:
    for panel in dashboard()["spec"]["panels"].values():
        (query,) = panel["spec"]["queries"]
        yield panel["spec"]["display"]["name"], panel["spec"], query


def queries() -> list[Query]:
    found = [
        Query(name, envelope["spec"], query["kind"] == "raw")
        for name, _, query in panels()
        for envelope in envelopes(query["spec"]["plugin"])
        if envelope["type"] == "builder_query"
    ]
    for path in RULES:
        content = rule(path)
        for envelope in content["condition"]["compositeQuery"]["queries"]:
            if envelope["type"] == "builder_query":
                found.append(Query(content["alert"], envelope["spec"]))
    return found


TOKEN = re.compile(
    r"\s*(?:(?P<word>AND|EXISTS|IN|CONTAINS)\b|(?P<compare>>=|<=|!=|=|>|<)|'(?P<text>[^']*)'"
    r"|(?P<number>-?\d+(?:\.\d+)?)|(?P<variable>\$[a-z]+)|(?P<key>[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*))"
)
"""The part of grammar/FilterQueryLexer.g4 our filters use."""


def conditions(expression: str) -> list[Condition]:
    """A filter as its comparisons; ours are comparisons joined by AND, and nothing else passes here.

    grammar/FilterQuery.g4: `key op value`, `key EXISTS`, `key CONTAINS value`, `key IN value`.
    """
    tokens, at = [], 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        assert match, f"no token of the filter grammar at {expression[at:]!r}"
        tokens.append((match.lastgroup, match[match.lastgroup or 0]))
        at = match.end()
    found, waiting = [], True
    while tokens:
        if not waiting:
            assert tokens.pop(0) == ("word", "AND"), f"comparisons are joined by AND: {expression}"
        kind, key = tokens.pop(0)
        assert kind == "key", f"a comparison begins with a key: {expression}"
        _, operator = tokens.pop(0)
        value: str | float | None = None
        if operator != "EXISTS":
            kind, text = tokens.pop(0)
            assert kind == ("variable" if operator == "IN" else "text" if operator == "CONTAINS" else kind), expression
            assert kind in ("variable", "text", "number"), expression
            value = float(text) if kind == "number" else text
        found.append(Condition(key, operator, value))
        waiting = False
    assert found, "a filter that takes every span of every service"
    return found


def aggregation(expression: str) -> tuple[str, str]:
    """Function and key of an aggregation (pkg/querybuilder/agg_funcs.go); one call in one expression, as
    `ensureSingleExpressionAggregation` of pkg/types/dashboardtypes/perses_dashboard_data.go asks.
    """
    match = re.fullmatch(r"(count|count_distinct|sum|avg|min|max|p50|p95|p99)\(([\w.]*)\)", expression)
    assert match, f"{expression} is no aggregation of one attribute"
    assert bool(match[2]) == (match[1] != "count"), expression
    return match[1], match[2]


def mentioned(query: Query) -> dict[str, set[str]]:
    """Every key a query asks for, with what it is used as: `number`, `string` or `any`."""
    uses: dict[str, set[str]] = {}
    for condition in conditions(query.spec["filter"]["expression"]):
        text = isinstance(condition.value, str)
        uses.setdefault(condition.key, set()).add(
            "any" if condition.value is None else "string" if text else "number",
        )
    for one in query.spec.get("aggregations", []):
        function, key = aggregation(one["expression"])
        if key:
            uses.setdefault(key, set()).add("any" if function == "count_distinct" else "number")
    for field in [*query.spec.get("groupBy", []), *query.spec.get("selectFields", [])]:
        uses.setdefault(field["name"], set()).add(field.get("fieldDataType", "any"))
    return uses


def holds(span: Json, condition: Condition) -> bool:
    have, want = span.get(condition.key), condition.value
    if have is None:
        return False
    match condition.operator:
        case "EXISTS" | "IN":  # the variable as it is at first: all runs
            return True
        case "CONTAINS":
            return str(want) in have
        case ">" | ">=" | "<" | "<=":
            assert isinstance(want, float)
            return {">": have > want, ">=": have >= want, "<": have < want, "<=": have <= want}[condition.operator]
        case operator:
            return (have == want) == (operator == "=")


def taken(query: Query, sent: list[Json]) -> list[Json]:
    wanted = conditions(query.spec["filter"]["expression"])
    return [span for span in sent if all(holds(span, one) for one in wanted)]


def measured(query: Query, sent: list[Json]) -> float:
    function, key = aggregation(query.spec["aggregations"][0]["expression"])
    rows = [span[key] for span in taken(query, sent) if key in span] if key else taken(query, sent)
    return {"count": len, "count_distinct": lambda x: len(set(x)), "sum": sum}[function](rows)


def of(owner: str) -> list[Query]:
    return [query for query in queries() if query.owner == owner]
