"""`observer rollouts …` as a user runs it: exit codes, JSON, one-line errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from observer_core.rollouts.story import Story


def observer(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "observer_pipeline.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OBSERVER_HOME": str(home)},
    )


def test_analyze_gives_the_agreed_json(story: Story, story_path: Path, tmp_path: Path):
    run = observer(tmp_path, "rollouts", "analyze", story_path, "--json", "--rows", 5)
    assert run.returncode == 0, run.stderr
    out = json.loads(run.stdout)
    assert {"rows", "steps", "drift", "findings", "rejected"} <= set(out)
    collapse = out["findings"][0]
    assert (collapse["kind"], collapse["steps"], collapse["count"]) == ("collapse", [18, 28], len(story.newline))
    assert collapse["rows"] == story.newline[:5]


def test_regrade_fails_on_drift_and_passes_without(story_path: Path, tmp_path: Path):
    run = observer(tmp_path, "rollouts", "regrade", story_path, "--json", "--workers", 1)
    assert run.returncode == 1
    assert json.loads(run.stdout)["drift"]["parsimony"]["max"] == 1.0
    assert run.stderr.startswith("observer: parsimony does not agree with the log")
    assert len(run.stderr.splitlines()) == 1
    run = observer(tmp_path, "rollouts", "regrade", story_path, "--reward", "quality", "--workers", 1)
    assert run.returncode == 0, run.stderr
    assert "1 rewards agree with the log" in run.stdout


def test_query_stores_once_and_answers(story: Story, story_path: Path, tmp_path: Path):
    sql = "SELECT count(*) AS n FROM completions WHERE parse_error = 'raw_newline'"
    for _ in range(2):
        run = observer(tmp_path, "rollouts", "query", story_path, "--sql", sql, "--json", "--workers", 1)
        assert json.loads(run.stdout)["rows"] == [[len(story.newline)]], run.stderr
    assert (tmp_path / "warehouse" / "rollout_spans" / "run=run-7" / "spans.parquet").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rollouts", "analyze", "absent"), "no file or folder absent"),
        (("rollouts", "analyze", "{log}", "--column", "nonsense"), "write MEANING=COLUMN"),
        (("rollouts", "regrade", "{log}", "--reward", "nonsense"), "no reward is named 'nonsense'"),
        (("rollouts", "query", "{log}", "nonsense"), "no question 'nonsense'"),
        (("rollouts", "query", "{log}", "drift", "--set", "difference=much"), "'much' is not a number"),
        (("rollouts", "emit", "{log}", "--weight", "quality"), "write NAME=VALUE"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], message: str, story_path: Path, tmp_path: Path):
    run = observer(tmp_path, *(a.replace("{log}", str(story_path)) for a in arguments))
    assert run.returncode == 2
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1
