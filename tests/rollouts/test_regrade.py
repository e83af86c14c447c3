import json
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from observer_core.errors import InputError
from observer_core.rewards import builtin_rewards, find_rewards
from observer_core.rollouts.fidelity import Fidelity
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, previous_revisions, regrade, rewards_for
from observer_core.rollouts.story import Story

MODULE = "tests.rollouts.rewards_for_tests"


def log_of(path: Path, completions: list[str], **columns: list) -> RolloutLog:
    path.write_text(
        "".join(
            json.dumps({"step": i // 4, "prompt": "Q", "completion": c} | {k: v[i] for k, v in columns.items()}) + "\n"
            for i, c in enumerate(completions)
        )
    )
    return RolloutLog(path)


def test_the_story_agrees_but_for_the_inverted_reward(story: Story, story_path: Path, tmp_path: Path):
    log = RolloutLog(story_path)
    result = regrade(log, rewards_for(log), GradeOptions(workers=2), out=tmp_path / "out")
    drift = result.fidelity.rewards
    assert (result.rows, len(result.steps)) == (1600, 200)
    assert {name for name, d in drift.items() if d.max > 1e-6} == {"parsimony"}
    assert drift["quality"].precision == "float32"
    assert drift["format"].precision == "float64"
    assert drift["parsimony"].precision is None
    assert not result.fidelity.holds
    assert result.fidelity.sentence().startswith("parsimony does not agree")
    assert result.parse_errors["raw_newline"] == len(story.newline)
    assert result.parse_errors["truncated"] == len(story.truncated)
    table = pq.read_table(tmp_path / "out" / "regraded.parquet")
    assert table.column("row").to_pylist() == list(range(1600))
    logged = story.table.column("quality").to_numpy()
    assert np.abs(table.column("quality").to_numpy() - logged).max() < 1e-6
    assert float(table.column("quality.seconds").to_numpy().min()) > 0
    assert previous_revisions(tmp_path / "out") == result.revisions


def test_one_process_and_two_give_the_same(story_path: Path):
    log = RolloutLog(story_path)
    one = regrade(log, rewards_for(log), GradeOptions(workers=1)).to_json()
    two = regrade(log, rewards_for(log), GradeOptions(workers=2)).to_json()
    assert {**one, "seconds": None} == {**two, "seconds": None}


def test_a_changed_reward_is_named(story_path: Path):
    log = RolloutLog(story_path)
    rewards = rewards_for(log, ["quality", "format"])
    before = {"quality": "0" * 12, "format": rewards[1].revision()}
    result = regrade(log, rewards, GradeOptions(workers=1), previous=before)
    assert set(result.changed) == {"quality"}
    assert "code changed since it was last graded: quality" in result.fidelity.sentence(result.changed)


def test_exceptions_and_odd_values_are_recorded_not_zeroed(tmp_path: Path):
    log = log_of(tmp_path / "log.jsonl", ["ok", "boom", "inf", "text"])
    rewards = find_rewards([f"{MODULE}:raises_on_some", f"{MODULE}:odd_values", f"{MODULE}:asynchronous"])
    result = regrade(log, rewards, GradeOptions(workers=1), out=tmp_path / "out")
    assert result.failures == {("raises_on_some", "exception"): 1, ("odd_values", "value"): 2}
    table = pq.read_table(tmp_path / "out" / "regraded.parquet").to_pydict()
    assert table["raises_on_some"] == [1.0, None, 1.0, 1.0]
    assert table["raises_on_some.error"] == [None, "exception: KeyError: 'boom'", None, None]
    assert table["odd_values"] == [1.0, 1.0, None, None]
    assert table["asynchronous"] == [0.5] * 4
    assert table["parse_error"] == [None] * 4, "plain text completions cannot fail to parse"


def test_a_hang_is_ended_and_named_and_the_rest_is_graded(tmp_path: Path):
    log = log_of(tmp_path / "log.jsonl", ["ok"] * 6 + ["hang"] + ["ok"] * 5)
    rewards = find_rewards([f"{MODULE}:hangs_on_some", f"{MODULE}:shortness"])
    result = regrade(log, rewards, GradeOptions(workers=1, timeout=0.5), out=tmp_path / "out")
    assert result.failures == {("hangs_on_some", "timeout"): 1}
    assert result.first_failures[0].row == 6
    table = pq.read_table(tmp_path / "out" / "regraded.parquet").to_pydict()
    assert table["hangs_on_some"] == [1.0] * 6 + [None] + [1.0] * 5
    assert table["shortness"] == [1.0] * 12


def test_a_reward_that_always_hangs_is_switched_off(tmp_path: Path):
    log = log_of(tmp_path / "log.jsonl", ["hang"] * 8)
    result = regrade(log, find_rewards([f"{MODULE}:hangs_on_some"]), GradeOptions(workers=1, timeout=0.3))
    assert result.switched_off == ["hangs_on_some"]
    assert result.failures == {("hangs_on_some", "not_run"): 8}


def test_trl_functions_get_messages_columns_and_only_what_they_accept(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    message = {"step": 1, "prompt": [{"role": "user", "content": "Q"}], "solution": "A"}
    lines = [{**message, "completion": [{"role": "assistant", "content": c}]} for c in ("A", "B")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rewards = find_rewards([f"{MODULE}:from_messages"])
    regrade(RolloutLog(path), rewards, GradeOptions(workers=1), out=tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "regraded.parquet").to_pydict()["from_messages"] == [1.0, 0.0]
    log = log_of(tmp_path / "plain.jsonl", ["A", "B"], reference=["A", "A"])
    regrade(log, find_rewards([f"{MODULE}:without_kwargs"]), GradeOptions(workers=1), out=tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "regraded.parquet").to_pydict()["without_kwargs"] == [1.0, 0.0]


def test_a_log_whose_rewards_are_unknown_is_refused_with_the_mend(tmp_path: Path):
    log = log_of(tmp_path / "log.jsonl", ["A"], mystery=[0.5])
    with pytest.raises(InputError, match=r"mystery.*--reward COLUMN=module:function"):
        rewards_for(log)


def test_drift_of_missing_scores_fails_the_gate():
    gate = Fidelity()
    gate.add("r", np.arange(3), np.array([0.1, np.nan, np.nan]), np.array([0.1, np.nan, 0.5]))
    assert gate.rewards["r"].state_differs == 1
    assert gate.rewards["r"].first_rows == [2]
    assert not gate.holds
    assert not Fidelity().holds, "nothing compared is not agreement"


def test_ten_megabyte_completions_are_graded_like_any_other(tmp_path: Path):
    answer = orjson.dumps({"answer": "w1 " * 3_300_000, "cited_artifacts": ["d"], "confidence": 0.5}).decode()
    short = orjson.dumps({"answer": "w1 w2", "cited_artifacts": ["d"], "confidence": 0.5}).decode()
    texts = [short, answer, "{" * 10_000_000, '{"answer": "' + "x" * 10_000_000, short]
    lines = [{"step": 1, "prompt": "Q", "completion": t, "reference": "w1 w2", "citations": ["d"]} for t in texts]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    rewards = builtin_rewards()
    graded = regrade(RolloutLog(tmp_path / "log.jsonl"), rewards, GradeOptions(workers=2), out=tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "regraded.parquet").to_pylist()
    assert graded.rows == len(texts)
    assert not graded.failures
    assert [row["parse_error"] is None for row in table] == [True, True, False, False, True]
    assert table[0]["quality"] == table[4]["quality"] == 1.0
    assert 0 < table[1]["quality"] < 1e-5
