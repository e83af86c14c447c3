"""The leakage probe, the baselines that must fail, and the report: each finds what is planted, and nothing else."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from typer.testing import CliRunner

from observer_core.errors import InputError
from observer_core.traces.jsonl import read_jsonl, write_jsonl
from observer_core.traces.otlp import read_otlp_file, split_by_trace, write_otlp_file
from observer_core.traces.trace import Trace
from observer_pipeline.agent.faults import FaultPlan
from observer_pipeline.agent.generate import SPANS_FILE, TRACES_FILE, GenerateOptions, generate_into
from observer_pipeline.agent.quality.contents import balance, duplicates, gold_against_people, gold_anew, telling_words
from observer_pipeline.agent.quality.guessing import guess, stratified_auroc
from observer_pipeline.agent.quality.probe import ProbeRow, probe
from observer_pipeline.agent.quality.report import examine
from observer_pipeline.agent.quality.surface import surface_baselines
from observer_pipeline.cli import build_app

RUNS = 300


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch") / "out"
    plan = FaultPlan({kind: rate * 1.25 for kind, rate in FaultPlan.parse("all").rates.items()}, seed=1)
    generate_into(folder, GenerateOptions(RUNS, seed=12, faults=plan, workers=2), spans=True)
    return folder


@pytest.fixture(scope="module")
def rows(batch: Path) -> list[ProbeRow]:
    groups = [group for request in read_otlp_file(batch / SPANS_FILE) for group in request.resource_spans]
    by_trace = {key.hex(): spans for key, spans in split_by_trace(groups).items()}
    traces = read_jsonl(batch / TRACES_FILE)
    return [ProbeRow(by_trace[str(t.trace_id)], t.question, t.failure_type) for t in traces]


def test_a_trained_probe_tells_nothing_from_ids_names_order_times_and_durations(rows: list[ProbeRow]) -> None:
    assert 80 < sum(row.fault is not None for row in rows) < RUNS - 80
    found = probe(rows)
    assert set(found.families) == {"ids", "names", "order", "timestamps", "durations", "all together"}
    assert set(found.kinds) == {row.fault for row in rows} - {None}
    assert found.told == []


def test_a_leak_of_a_single_kind_is_found(rows: list[ProbeRow]) -> None:
    common = Counter(row.fault for row in rows if row.fault and "tool" not in row.fault).most_common(1)[0][0]
    spoiled = [planted(row, _plant_name) if row.fault == common else row for row in rows]
    assert [name for name, g in probe(spoiled).kinds.items() if g.beats_chance] == [common]


def planted(row: ProbeRow, plant: Callable[[Span], None]) -> ProbeRow:
    """The row with something done to each of its spans."""
    spans = [ResourceSpans.FromString(group.SerializeToString()) for group in row.spans]
    for span in (span for group in spans for scope in group.scope_spans for span in scope.spans):
        plant(span)
    return replace(row, spans=spans)


def _plant_name(span) -> None:
    span.attributes.add(key="observer.agent.variant").value.string_value = "x"


def _plant_order(span) -> None:
    kept = sorted(span.attributes, key=lambda attribute: attribute.key)
    copies = [type(a)(key=a.key, value=a.value) for a in kept]
    del span.attributes[:]
    span.attributes.extend(copies)


def _plant_duration(span) -> None:
    span.end_time_unix_nano += 40_000_000


def _plant_id(span) -> None:
    span.trace_id = b"\x07" + span.trace_id[1:]


def _plant_time(span) -> None:
    begins, ends = span.start_time_unix_nano, span.end_time_unix_nano
    span.start_time_unix_nano = begins // 1_000_000 * 1_000_000
    span.end_time_unix_nano = ends


@pytest.mark.parametrize(
    ("family", "plant"),
    [
        ("names", _plant_name), ("order", _plant_order), ("durations", _plant_duration), ("ids", _plant_id),
        ("timestamps", _plant_time),
    ],
)  # fmt: skip
def test_a_planted_leak_is_found(rows: list[ProbeRow], family: str, plant) -> None:
    found = probe([planted(row, plant) if row.fault else row for row in rows], by=[family])
    assert found.families[family].beats_chance
    assert found.families[family].auroc > 0.8


def test_the_generated_world_cannot_be_guessed_from_its_surface(batch: Path) -> None:
    found = surface_baselines(read_jsonl(batch / TRACES_FILE))
    for part in ("question", "answer, given", "evidence", "lengths, alike"):
        # Of 300 traces chance alone reaches 0.59; the limit of 0.55 is for 2,000 (docs/agent.md).
        assert found[part].auroc < 0.62, (part, str(found[part]))
    assert found["calls"].auroc > 0.5  # as in life


def test_what_is_held_equal_cannot_tell() -> None:
    strata = np.array([0, 0, 0, 1, 1, 1])
    target = np.array([True, False, False, True, True, False])
    scores = np.array([1.0, 2.0, 0.0, 5.0, 7.0, 5.0])
    # Pairs within strata: (1>2 no, 1>0 yes), (5=5 half, 7>5 yes).
    assert stratified_auroc(scores, target, strata) == (0 + 1 + 0.5 + 1) / 4
    assert stratified_auroc(scores, target, np.arange(6)) is None
    rng = np.random.default_rng(0)
    calls = rng.integers(0, 4, 400)
    wrong = rng.random(400) < calls / 4
    told = guess(calls[:, None].astype(float), wrong, [str(i) for i in range(400)])
    equal = guess(calls[:, None].astype(float), wrong, [str(i) for i in range(400)], equal=list(calls))
    assert told.beats_chance
    assert not equal.beats_chance


def trace(question: str, answer: str, label: str, **fields) -> Trace:
    return Trace(question, answer, label=label, **fields)  # type: ignore[arg-type]


def test_counts_duplicates_and_telling_words() -> None:
    traces = [
        trace("Who is Ada Velk?", "Me", "correct", trace_id="a", split="train", gold_answer="Me"),
        trace("Who is Ada Velk?", "Me", "wrong", trace_id="a", split="test", failure_type="early_stop"),
        trace("Who is Bo Rindal?", "x early_stop x", "partial", trace_id="b", model="m"),
        trace("Where?", "", "wrong", label_source="annotation", gold_answer="Me", trace_id="c"),
    ]
    twice = duplicates(traces)
    assert (twice.trace_ids, twice.questions_in_splits, twice.same_state, twice.contradicting) == (1, 1, 2, 1)
    assert twice.templates == pytest.approx(2 / 3)
    assert telling_words(traces) == Counter({"early_stop": 1})
    shares = {share.name: share for share in balance(traces)["fault"]}
    assert (shares["natural"].n, shares["early_stop"].n) == (3, 1)
    assert shares["natural"].wrong == pytest.approx(2 / 3)
    assert [share.name for share in balance(traces)["answer's words"]] == ["0", "1", "2-3"]
    agree = gold_against_people(traces)
    assert (agree.n, agree.share, agree.table) == (1, 1.0, {("wrong", "wrong"): 1})


def test_gold_labels_that_the_rules_would_give_otherwise_are_named() -> None:
    gold = {"gold_answer": "Maro Velk", "label_source": "gold"}
    traces = [
        trace("q", "Maro Velk", "correct", trace_id="right", **gold),
        trace("q", "Velk", "correct", trace_id="lenient", **gold),
        trace("q", "M. V.", "correct", trace_id="alias", extra={"gold_aliases": ["M. V."]}, **gold),
        trace("q", "It is Velk, I think", "partial", trace_id="cleaned", extra={"cleaned_answer": "Velk"}, **gold),
        trace("q", "Lyon", "correct", trace_id="person", gold_answer="Maro Velk", label_source="annotation"),
    ]
    checked, differ = gold_anew(traces)
    assert checked == 4
    assert [(one.trace_id, one.label, one.by_the_rules) for one in differ] == [("lenient", "correct", "partial")]


def test_the_report_is_written_whole_and_names_what_is_wrong(batch: Path, tmp_path: Path) -> None:
    def quality(*arguments: object):
        command = ["agent", "quality", *map(str, arguments)]
        return CliRunner().invoke(build_app(), command, catch_exceptions=False)

    done = quality(batch / TRACES_FILE, "--spans", batch / SPANS_FILE, "--out", tmp_path / "good", "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["traces"] == RUNS
    assert not [problem for problem in report["problems"] if "told by" in problem or "occur" in problem]
    assert report == json.loads((tmp_path / "good/quality.json").read_text())
    page = (tmp_path / "good/quality.html").read_text()
    assert page.count("data:image/svg+xml") == 3
    assert "http" not in page.replace("http://www.w3.org", "")
    written = (tmp_path / "good/quality.md").read_text()
    assert "| weak_model |" in written
    assert f"0 of {RUNS} differ." in written
    assert len(report["probe"]["kinds"]) > 10

    spoiled = read_jsonl(batch / TRACES_FILE)
    for one in spoiled:
        one.trace_id = "same"
        one.question += " Mark it." if one.is_wrong else ""
    write_jsonl(tmp_path / "spoiled.jsonl", spoiled)
    said = quality(tmp_path / "spoiled.jsonl", "--out", tmp_path / "bad").output
    assert "can be guessed from the question alone" in said
    assert "trace ids occur more than once" in said
    with pytest.raises(InputError, match="exists already"):
        quality(batch / TRACES_FILE, "--out", tmp_path / "bad")
    write_otlp_file(tmp_path / "others.pb", [])
    with pytest.raises(InputError, match="holds the spans of no trace"):
        quality(batch / TRACES_FILE, "--spans", tmp_path / "others.pb", "--out", tmp_path / "none")
    with pytest.raises(InputError, match="too few to judge"):
        examine(spoiled[:10], title="few")
