"""The seed story is found, all of it and nothing else; a healthy run has no finding."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from observer_core.rollouts.features import extract
from observer_core.rollouts.findings import KINDS, Analysis, Finding, analyze
from observer_core.rollouts.findings.stats import (
    correlation,
    log_binomial_tail,
    log_fisher_tail,
    scan,
    sharpen,
)
from observer_core.rollouts.groups import group_ids
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.report import write_report
from observer_core.rollouts.story import HABIT, REWARDS, Story, healthy_log, story_log


def analysis_of(table: pa.Table, path: Path) -> Analysis:
    pq.write_table(table, path)
    return analyze(extract(RolloutLog(path)))


@pytest.fixture(scope="module")
def analysis(story_path: Path) -> Analysis:
    return analyze(extract(RolloutLog(story_path)))


def the(analysis: Analysis, kind: str) -> Finding:
    (finding,) = [f for f in analysis.findings if f.kind == kind]
    return finding


def test_the_story_is_found_and_nothing_else(analysis: Analysis):
    assert [f.kind for f in analysis.findings] == [
        *("collapse", "parse_failures", "truncation", "reward_hacking", "habit", "optimiser_gap", "convergent_tasks")
    ]


def test_the_collapse_has_its_steps_its_zeros_and_their_cause(analysis: Analysis, story: Story):
    collapse = the(analysis, "collapse")
    assert collapse.steps == (18, 28)
    assert collapse.rewards == REWARDS
    assert collapse.rows.tolist() == story.newline
    assert "exactly the completions with raw_newline (0x0A)" in collapse.sentence
    failures = the(analysis, "parse_failures")
    assert (failures.steps, failures.rows.tolist()) == ((18, 28), story.newline)
    killed = {r["hypothesis"]: r["number"] for r in analysis.rejected}
    assert killed["truncation explains the collapse: share of its zeros in the window that are cut off"] == 0
    assert killed["bad answers explain the collapse: share of its zeros in the window that could be read"] == 0
    assert any(h.startswith("one task explains the collapse") for h in killed)


def test_truncation_inversion_habit_gap_and_where_they_meet(analysis: Analysis, story: Story):
    assert the(analysis, "truncation").rows.tolist() == story.truncated
    assert set(the(analysis, "truncation").tasks) == set(story.tasks)
    assert the(analysis, "reward_hacking").rewards == ("parsimony",)
    habit = the(analysis, "habit")
    assert habit.rows.tolist() == story.habit
    assert habit.steps == (40, 200)
    assert f"are {HABIT:g}" in habit.sentence
    gap = the(analysis, "optimiser_gap")
    assert set(story.least_bad) <= set(gap.rows.tolist())
    assert gap.count - len(story.least_bad) <= 3
    assert set(gap.tasks) == set(story.tasks)
    assert set(the(analysis, "convergent_tasks").tasks) == set(story.tasks)


def test_the_json_is_the_contracts(analysis: Analysis):
    out = json.loads(json.dumps(analysis.to_json(max_rows=10)))
    assert (out["rows"], out["steps"]) == (1600, 200)
    assert out["drift"]["quality"]["max"] < 1e-6 < out["drift"]["parsimony"]["mean"]
    for finding in out["findings"]:
        assert set(finding) == {"kind", "steps", "rewards", "tasks", "count", "share", "rows", "sentence"}
        assert finding["kind"] in KINDS
        assert len(finding["rows"]) == min(10, finding["count"])
        assert 0 < finding["share"] <= 1
    assert all(set(r) == {"hypothesis", "number"} for r in out["rejected"])


@pytest.mark.parametrize("seed", range(8))
def test_healthy_logs_have_no_finding(seed: int, tmp_path: Path):
    assert analysis_of(healthy_log(seed), tmp_path / "log.parquet").findings == []


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_at_most_five_percent_of_200_healthy_logs_have_any_finding(tmp_path: Path):
    with_finding = [s for s in range(200) if analysis_of(healthy_log(s), tmp_path / "log.parquet").findings]
    assert len(with_finding) <= 10, with_finding


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_the_story_is_found_at_other_seeds(tmp_path: Path):
    """Windows may miss a step at their edge where chance planted little; nothing planted may be missed altogether."""
    kinds = ("collapse", "parse_failures", "truncation", "reward_hacking", "habit", "optimiser_gap", "convergent_tasks")
    for seed in range(100, 130):
        story = story_log(seed)
        analysis = analysis_of(story.table, tmp_path / "log.parquet")
        assert {f.kind for f in analysis.findings} == set(kinds), seed
        assert the(analysis, "collapse").steps == (18, 28), seed
        assert the(analysis, "collapse").rows.tolist() == story.newline, seed
        assert the(analysis, "truncation").rows.tolist() == story.truncated, seed
        assert len(set(story.habit) - set(the(analysis, "habit").rows.tolist())) <= 4, seed
        assert set(the(analysis, "convergent_tasks").tasks) <= set(story.tasks), seed


def changed(table: pa.Table, name: str, values: np.ndarray | list) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def kinds(analysis: Analysis) -> list[str]:
    return [f.kind for f in analysis.findings]


def test_a_reward_that_dies_is_named_with_its_step(tmp_path: Path):
    table = healthy_log(1)
    step = table.column("step").to_numpy()
    dead = np.where(step >= 120, 0.0, table.column("citation").to_numpy())
    found = the(analysis_of(changed(table, "citation", dead), tmp_path / "log.parquet"), "persistent_zero")
    assert (found.steps, found.rewards, found.count) == ((120, 200), ("citation",), 81 * 8)


def test_groups_without_variance_are_found(tmp_path: Path):
    table = healthy_log(2)
    flat = np.isin(table.column("step").to_numpy(), np.arange(80, 130))
    for name in REWARDS:
        table = changed(table, name, np.where(flat, 0.5, table.column(name).to_numpy()))
    found = the(analysis_of(table, tmp_path / "log.parquet"), "degenerate_groups")
    assert (found.steps, found.count) == ((80, 129), 50 * 8)


def test_one_reward_up_while_quality_goes_down(tmp_path: Path):
    table = healthy_log(3)
    step = table.column("step").to_numpy()
    rng = np.random.default_rng(0)
    quality = np.clip(0.7 - 0.002 * step + rng.normal(0, 0.1, len(step)), 0, 1)
    tone = np.clip(0.2 + 0.003 * step + rng.normal(0, 0.1, len(step)), 0, 1)
    table = changed(table, "quality", quality).append_column("tone", pa.array(tone)).drop_columns(["reference"])
    findings = [f for f in analysis_of(table, tmp_path / "log.parquet").findings if f.kind == "reward_hacking"]
    assert [f.rewards for f in findings] == [("tone", "quality")]


def test_lengths_that_pay_duplicates_and_a_fall_without_zeros(tmp_path: Path):
    table = healthy_log(4)
    step = table.column("step").to_numpy()
    completions = table.column("completion").to_pylist()
    copies = [completions[i - i % 8] if 60 <= step[i] < 90 else completions[i] for i in range(len(completions))]
    found = the(analysis_of(changed(table, "completion", copies), tmp_path / "a.parquet"), "duplicates")
    assert found.count == 30 * 7
    fallen = table
    for name in ("quality", "calibration"):
        fallen = changed(fallen, name, np.where((step >= 100) & (step < 115), 0.4, 1.0) * table.column(name).to_numpy())
    collapse = the(analysis_of(fallen, tmp_path / "b.parquet"), "collapse")
    assert set(collapse.rewards) == {"quality", "calibration"}
    assert abs(collapse.steps[0] - 100) <= 3
    assert abs(collapse.steps[1] - 114) <= 3
    padded = [c[:-1] + " " * (s * 4) + "}" for c, s in zip(completions, step.tolist(), strict=True)]
    longer = changed(changed(table, "completion", padded), "repetition", step / 200)
    assert {"drift", "reward_hacking"} <= set(kinds(analysis_of(longer, tmp_path / "c.parquet")))


def test_groups_follow_from_prompt_and_order():
    step = np.array([1] * 8 + [2] * 4)
    prompt = np.array([10] * 4 + [11] * 4 + [12] * 4)
    assert group_ids(step, prompt).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    accumulated = np.array([10] * 4 + [12] * 8)
    assert group_ids(np.ones(12, int), accumulated, size=4).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    many = np.repeat(np.arange(20), 4)
    twice = np.concatenate([many, [50] * 8])
    assert group_ids(np.ones(88, int), twice)[-8:].tolist() == [20] * 4 + [21] * 4, "twice the usual length: two groups"
    shuffled = np.tile(np.arange(5), 4)
    assert group_ids(np.ones(20, int), shuffled).tolist() == np.tile(np.arange(5), 4).tolist()
    assert group_ids(np.ones(4, int), np.zeros(4, int), given=np.array([7, 8, 7, 8])).tolist() == [0, 1, 0, 1]


def test_tails_bound_the_exact_ones_closely():
    scipy_stats = pytest.importorskip("scipy.stats")
    for hits, trials, rate in [(5, 20, 0.1), (40, 64, 0.3), (300, 1600, 0.15), (3, 8, 0.001)]:
        exact = scipy_stats.binom.logsf(hits - 1, trials, rate)
        ours = float(log_binomial_tail(hits, trials, rate))
        assert exact <= ours + 1e-9 < exact + 0.7
    for hits, trials, all_hits, all_trials in [(8, 20, 20, 200), (60, 88, 90, 1600), (300, 1000, 400, 2000)]:
        exact = scipy_stats.hypergeom.logsf(hits - 1, all_trials, all_hits, trials)
        ours = float(log_fisher_tail(np.array(hits), np.array(trials), all_hits, all_trials))
        assert exact <= ours + 1e-6 < exact + 0.7
    assert float(log_binomial_tail(1, 20, 0.1)) == 0.0


def test_scan_and_edges_find_a_planted_window_and_correlation_its_sign():
    rng = np.random.default_rng(0)
    hits = rng.binomial(8, 0.02, 300)
    hits[100:120] = rng.binomial(8, 0.5, 20)
    trials = np.full(300, 8)
    window = scan(hits, trials)
    assert window is not None
    assert window.log_p < -50
    first, last = sharpen(hits, trials, window)
    assert abs(first - 100) <= 1
    assert abs(last - 119) <= 1
    x = rng.normal(size=500)
    rho, log_p = correlation(x, -x + rng.normal(size=500))
    assert rho < -0.5
    assert log_p < -50
    assert correlation(x, rng.normal(size=500))[1] > -7


def test_the_report_shows_evidence_plots_and_what_was_rejected(
    analysis: Analysis, story: Story, story_path: Path, tmp_path: Path
):
    write_report(tmp_path / "report", analysis, RolloutLog(story_path))
    evidence = pq.read_table(tmp_path / "report" / "evidence.parquet").to_pylist()
    first = [e for e in evidence if e["finding"] == 0]
    assert [e["row"] for e in first] == story.newline[:50]
    assert first[0]["completion"] == story.table.column("completion")[story.newline[0]].as_py()
    report = (tmp_path / "report" / "report.md").read_text()
    for number, finding in enumerate(analysis.findings):
        image = f"{number:02d}-{finding.kind}.png"
        assert image in report
        assert (tmp_path / "report" / image).read_bytes().startswith(b"\x89PNG")
    assert "## Tested and rejected" in report


@pytest.mark.parametrize("rows", [0, 1, 8, 16])
def test_tiny_and_odd_logs_do_not_fail(rows: int, tmp_path: Path):
    table = story_log(1, steps=2).table.slice(0, rows)
    assert analysis_of(table, tmp_path / "log.parquet").findings == []
    bare = pa.table({"step": [1] * rows, "prompt": ["Q"] * rows, "completion": ["text"] * rows})
    assert {f.kind for f in analysis_of(bare, tmp_path / "bare.parquet").findings} <= {"duplicates"}
    empty = pa.table({"step": [1, 2] * 8, "prompt": [""] * 16, "completion": [""] * 16, "r": [float("nan")] * 16})
    analysis_of(empty, tmp_path / "empty.parquet")
