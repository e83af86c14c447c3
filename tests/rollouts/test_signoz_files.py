"""`deploy/signoz/`: the files have the shape today's SigNoz takes, and ask only for what our spans carry.

No SigNoz runs here. What its Go types require was read in its repositories (SigNoz v0.135 to v0.145, Foundry v0.2 to v0.3)
and is said again below as plain checks, each with the file it comes from; paths are in SigNoz/signoz unless said.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from observer_core.rewards import find_rewards
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, grade_batches, rewards_for
from observer_core.rollouts.spans import Span, SpanBuilder, reward_facts, scored_steps
from observer_core.rollouts.story import Story
from tests.rollouts.signoz_queries import (
    FOLDER,
    INTRINSIC,
    ROOT,
    RULES,
    Condition,
    Json,
    Query,
    aggregation,
    conditions,
    dashboard,
    envelopes,
    measured,
    mentioned,
    of,
    panels,
    queries,
    rule,
    taken,
)


@pytest.fixture(scope="module")
def spans(story_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Span]:
    """The story's spans, and those of a log with a reward that raises."""
    broken = tmp_path_factory.mktemp("broken") / "broken.jsonl"
    lines = [{"step": 1, "prompt": "Q", "completion": text, "raises": 1.0} for text in ("fine", "boom")]
    broken.write_text("".join(json.dumps(line) + "\n" for line in lines))
    story = RolloutLog(story_path)
    return [
        *built(story, rewards_for(story)),
        *built(RolloutLog(broken), find_rewards(["raises=tests.rollouts.rewards_for_tests:raises_on_some"])),
    ]


def built(log: RolloutLog, rewards: list[Any]) -> Iterator[Span]:
    builder = SpanBuilder(log.run, reward_facts(rewards))
    graded = grade_batches(log.batches(), rewards, GradeOptions(workers=1))
    for step, scored in scored_steps(graded, log.rewards):
        yield from builder.step(step, scored, 10**18)


def fields(span: Span) -> Json:
    own = {"timestamp": span.start_ns, "trace_id": span.trace_id, "name": span.name}
    return own | {name: value for name, value in span.attributes.items() if value is not None}


@pytest.fixture(scope="module")
def sent(spans: list[Span]) -> list[Json]:
    return [fields(span) for span in spans]


@pytest.fixture(scope="module")
def written(spans: list[Span]) -> dict[str, str]:
    """Every attribute of any span and its kind on the wire; SigNoz keeps strings, numbers and bools apart."""
    kinds: dict[str, set[str]] = {name: {"number" if kind is int else "string"} for name, kind in INTRINSIC.items()}
    for span in spans:
        for name, value in span.attributes.items():
            if value is not None:
                kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
                kinds.setdefault(name, set()).add(kind)
    assert all(len(found) == 1 for found in kinds.values()), "an attribute of two kinds is ambiguous to SigNoz"
    return {name: found.pop() for name, found in kinds.items()}


@pytest.mark.parametrize("query", queries(), ids=lambda q: f"{q.owner}-{q.spec['name']}")
def test_every_query_asks_for_what_the_spans_carry(query: Query, written: dict[str, str], sent: list[Json]):
    for name, uses in mentioned(query).items():
        assert name in written, f"{query.owner}: no span has {name}"
        assert uses <= {written[name], "any"}, f"{query.owner}: {name} is a {written[name]}"
    assert taken(query, sent), f"{query.owner} finds nothing, though the story has it"
    grouped = {field["name"] for field in query.spec.get("groupBy", [])}
    assert all(any(name in span for span in taken(query, sent)) for name in grouped), "grouped by what its spans lack"
    assert set(re.findall(r"{{([\w.]+)}}", query.spec.get("legend", ""))) <= grouped
    for one in query.spec.get("aggregations", []):
        _, key = aggregation(one["expression"])
        assert not key or any(key in span for span in taken(query, sent)), f"{key} is on other spans than these"


def test_the_queries_count_what_the_story_has(sent: list[Json], story: Story):
    sent = [span for span in sent if span["training.run"] == "run-7"]
    spans, steps = of("Spans per step")
    assert measured(spans, sent) / measured(steps, sent) == 57
    assert measured(of("Steps")[0], sent) == 200
    assert measured(of("Completions")[0], sent) == 1600
    unread, every = of("Completions that cannot be read")[:2]
    assert measured(every, sent) == 1600
    (classes,) = of("Parse failures by class")
    found = [span["completion.parse_error"] for span in taken(classes, sent)]
    assert found.count("raw_newline") == len(story.newline)
    assert found.count("truncated") == len(story.truncated)
    assert measured(unread, sent) == len(found)
    signatures = [span.get("hack.signature", "") for span in sent]
    for owner in ("Rewarded though bad", "Bad completions are rewarded"):
        (query,) = of(owner)
        assert measured(query, sent) == sum("rewarded_though_bad" in s for s in signatures) > 0
    (overconfident,) = of("Over-confident bad completions")
    assert len(taken(overconfident, sent)) == sum("overconfident" in s for s in signatures) > 0


QUERY_FIELDS = {
    *("name", "stepInterval", "signal", "source", "aggregations", "disabled", "filter", "groupBy", "order", "having"),
    *("selectFields", "limit", "limitBy", "offset", "cursor", "secondaryAggregations", "functions", "legend"),
}
"""pkg/types/querybuildertypes/querybuildertypesv5/builder_query.go; a field beside these is refused."""


@pytest.mark.parametrize("query", queries(), ids=lambda q: f"{q.owner}-{q.spec['name']}")
def test_a_query_has_the_v5_shape(query: Query):
    spec = query.spec
    assert set(spec) <= QUERY_FIELDS
    assert spec["signal"] == "traces"
    assert query.raw or spec["aggregations"], "validateAggregations in validation.go"
    assert 0 <= spec.get("limit", 0) <= 10_000, "MaxQueryLimit in validation.go"
    for one in spec.get("aggregations", []):
        assert set(one) <= {"expression", "alias"}
        assert " as " not in one["expression"].lower()
    for field in [*spec.get("groupBy", []), *spec.get("selectFields", [])]:
        assert set(field) <= {"name", "signal", "fieldContext", "fieldDataType"}  # pkg/types/telemetrytypes/field.go
        assert field["fieldContext"] == ("span" if field["name"] in INTRINSIC else "attribute")
        assert field.get("fieldDataType", "number") in ("string", "number", "bool")  # field_datatype.go
    sortable = {field["name"] for field in spec.get("groupBy", [])} | ({"timestamp"} if query.raw else set())
    sortable |= {name for one in spec.get("aggregations", []) for name in (one["expression"], one.get("alias"))}
    for order in spec.get("order", []):  # validateOrderByForAggregation in validation.go
        assert order["key"]["name"] in sortable
        assert order["direction"] in ("asc", "desc")


PANELS = {
    "signoz/NumberPanel": ("scalar", {"visualization", "formatting", "thresholds"}),
    "signoz/TablePanel": ("scalar", {"visualization", "formatting", "thresholds"}),
    "signoz/TimeSeriesPanel": (
        "time_series",
        {"visualization", "formatting", "chartAppearance", "axes", "legend", "thresholds"},
    ),
    "signoz/BarChartPanel": ("time_series", {"visualization", "formatting", "axes", "legend", "thresholds"}),
    "signoz/ListPanel": ("raw", {"selectFields"}),
}
"""pkg/types/dashboardtypes/perses_signoz_plugins.go and, for the kinds of request, querybuildertypesv5/request_type.go."""


def test_the_dashboard_has_the_v6_shape():
    """PostableDashboardV2 in pkg/types/dashboardtypes/perses_dashboard.go; unknown fields are refused everywhere."""
    content = dashboard()
    assert set(content) == {"schemaVersion", "generateName", "tags", "spec"}
    assert content["schemaVersion"] == "v6"
    assert content["generateName"] is True, "then there must be no `name`, and the display name gives it"
    assert len(content["tags"]) <= 10
    reserved = {"name", "description", "created_at", "updated_at", "created_by", "locked", "public"}
    assert all(set(tag) == {"key", "value"} and tag["key"] not in reserved for tag in content["tags"])
    spec = content["spec"]
    assert {"display", "variables", "panels", "layouts"} <= set(spec)
    (variable,) = spec["variables"]
    assert variable["kind"] == "ListVariable"
    assert variable["spec"]["plugin"] == {
        "kind": "signoz/DynamicVariable",
        "spec": {"name": "training.run", "signal": "traces"},
    }
    for name, panel, query in panels():
        assert set(panel) == {"display", "plugin", "queries", "links"}
        assert 0 < len(name) <= 128
        request, allowed = PANELS[panel["plugin"]["kind"]]
        assert query["kind"] == request
        assert set(panel["plugin"]["spec"]) <= allowed
        formatting = panel["plugin"]["spec"].get("formatting", {})
        assert formatting.get("decimalPrecision", "2") in ("0", "1", "2", "3", "4", "full")
        parts = envelopes(query["spec"]["plugin"])
        assert query["spec"]["plugin"]["kind"] in ("signoz/BuilderQuery", "signoz/CompositeQuery")
        check_formula(parts)
        for part in parts:
            if part["type"] == "builder_query":
                asked = conditions(part["spec"]["filter"]["expression"])
                assert Condition("training.run", "IN", "$" + variable["spec"]["name"]) in asked, f"{name}: any run"
        assert panel["plugin"]["spec"].get("selectFields") == parts[0]["spec"].get("selectFields")


def check_formula(parts: list[Json]) -> None:
    """A formula's letters are queries that are switched off (pkg/types/querybuildertypes/querybuildertypesv5/formula.go)."""
    formulas = [part["spec"] for part in parts if part["type"] == "builder_formula"]
    names = {part["spec"]["name"] for part in parts if part["type"] == "builder_query"}
    if not formulas:
        assert len(parts) == 1
        assert not parts[0]["spec"].get("disabled")
        return
    (formula,) = formulas
    assert set(re.findall(r"[A-Z]", formula["expression"])) == names
    assert all(part["spec"]["disabled"] for part in parts if part["type"] == "builder_query")
    same = [(part["spec"].get("groupBy"), part["spec"]["filter"]) for part in parts if part["type"] == "builder_query"]
    assert all(one == same[0] for one in same), "a share of other spans than its whole"


def test_every_panel_is_laid_out_once_and_none_overlap():
    """validateLayouts in perses_dashboard_data.go, validateGridLayoutGeometry in perses_replicas.go."""
    spec = dashboard()["spec"]
    placed = []
    for layout in spec["layouts"]:
        assert layout["kind"] == "Grid"
        cells: set[tuple[int, int]] = set()
        for item in layout["spec"]["items"]:
            assert item["x"] + item["width"] <= 12
            own = {(item["x"] + i, item["y"] + j) for i in range(item["width"]) for j in range(item["height"])}
            assert own
            assert not own & cells
            cells |= own
            placed.append(item["content"]["$ref"])
    assert sorted(placed) == sorted(f"#/spec/panels/{name}" for name in spec["panels"])
    assert all(re.fullmatch(r"[\w.-]{1,75}", name) for name in spec["panels"]), "common.ValidateID of Perses"


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_a_rule_has_the_v2alpha1_shape(path: Path):
    """PostableRule.Validate in pkg/types/ruletypes/api_params.go, for POST /api/v2/rules."""
    content = rule(path)
    assert content["alert"]
    assert (content["alertType"], content["ruleType"]) == ("TRACES_BASED_ALERT", "threshold_rule")
    assert (content["version"], content["schemaVersion"]) == ("v5", "v2alpha1")
    condition = content["condition"]
    composite = condition["compositeQuery"]
    assert (composite["queryType"], composite["panelType"]) == ("builder", "graph")
    names = {part["spec"]["name"]: part["spec"] for part in composite["queries"]}
    assert not names[condition["selectedQueryName"]].get("disabled")
    check_formula(composite["queries"])
    assert not condition.get("requireMinPoints") or condition["requiredNumPoints"] > 0
    assert condition["thresholds"]["kind"] == "basic"  # threshold.go
    for threshold in condition["thresholds"]["spec"]:
        assert threshold["name"]
        assert isinstance(threshold["target"], int | float)
        assert threshold["op"] in ("above", "below", "equal", "not_equal", "outside_bounds")  # compare.go
        assert threshold["matchType"] in (
            "at_least_once",
            "all_the_times",
            "on_average",
            "in_total",
            "last",
        )  # match.go
        assert threshold["channels"] == ["observer"]
        assert threshold["name"] == content["labels"]["severity"]
    assert content["evaluation"]["kind"] == "rolling"  # evaluation.go
    window = content["evaluation"]["spec"]
    assert all(re.fullmatch(r"[1-9]\d*[smh]", window[name]) for name in ("evalWindow", "frequency"))
    settings = content["notificationSettings"]
    assert settings["renotify"]["enabled"] is True
    assert re.fullmatch(r"[1-9]\d*[smh]", settings["renotify"]["interval"])
    assert set(settings["renotify"]["alertStates"]) <= {"firing", "nodata"}
    builders = [part["spec"] for part in composite["queries"] if part["type"] == "builder_query"]
    grouped = {field["name"] for field in builders[0]["groupBy"]}
    assert set(settings["groupBy"]) == grouped
    words = set(re.findall(r"{{\$([\w.]+)}}", " ".join(content["annotations"].values())))
    assert words <= grouped | {"value", "threshold"}, "templates know the labels of the series, no others"
    assert all(re.fullmatch(r"[A-Za-z_.][\w.]*", name) for name in (*content["labels"], *content["annotations"]))


def test_the_casting_is_pinned_and_open_to_the_loopback_only():
    """SigNoz/foundry: api/v1alpha1/installation/casting.schema.json, docs/concepts/patches.md; services are named as in
    docs/examples/docker/compose-mcp/pours/deployment/compose.yaml.
    """
    casting = yaml.safe_load((FOLDER / "casting.yaml").read_text())
    assert set(casting) == {"apiVersion", "kind", "metadata", "spec"}
    assert (casting["apiVersion"], casting["kind"]) == ("v1alpha1", "Installation")
    spec = casting["spec"]
    assert spec["deployment"] == {"mode": "docker", "flavor": "compose"}
    for molding in ("signoz", "ingester"):
        own = spec[molding]["spec"]
        assert re.fullmatch(r"signoz/[a-z-]+:v\d+\.\d+\.\d+", own["image"]), "a released version, never `latest`"
        assert own["image"].endswith(":" + own["version"])
    (patch,) = spec["patches"]
    assert patch["target"] == "deployment/compose.yaml"
    name = casting["metadata"]["name"]
    ports = {operation["path"]: operation["value"] for operation in patch["operations"]}
    assert set(ports) == {f"/services/{name}-signoz-0/ports", "/services/ingester/ports"}
    assert all(operation["op"] == "replace" for operation in patch["operations"])
    assert all(port.startswith("127.0.0.1:") for value in ports.values() for port in value)


def test_the_published_list_names_what_each_panel_and_alert_needs():
    rows = re.findall(
        r"^\| (panel|alert) (.+?) \| (.+?) \|$", (ROOT / "docs" / "rollouts.md").read_text(), re.MULTILINE
    )
    published = {title: set(re.findall(r"`([\w.]+)`", needs)) for _, title, needs in rows}
    needed: dict[str, set[str]] = {}
    for query in queries():
        own = {name for name in mentioned(query) if name not in INTRINSIC}
        needed.setdefault(query.owner, set()).update(own)
    assert published == needed
