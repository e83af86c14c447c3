import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from observer_core.errors import InputError
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.ready import QUESTIONS
from observer_core.rollouts.regrade import GradeOptions, rewards_for
from observer_core.rollouts.sql import BoundedSql, Limits
from observer_core.rollouts.store import VIEWS, store_is_current, write_store
from observer_core.rollouts.story import Story

ONE = GradeOptions(workers=1)


@pytest.fixture(scope="module")
def folder(story_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = RolloutLog(story_path)
    folder = tmp_path_factory.mktemp("store") / "run=story"
    assert write_store(log, rewards_for(log), folder, ONE) == 200 * 57
    assert store_is_current(log, folder)
    assert not store_is_current(RolloutLog(story_path, run="other"), folder)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[BoundedSql]:
    with BoundedSql({"spans": [folder]}, VIEWS, Limits(seconds=30, rows=50)) as engine:
        yield engine


def test_a_parents_attribute_and_a_childs_score_are_one_query(engine: BoundedSql, story: Story):
    answer = engine.query(
        """SELECT count(*) FROM completion_rewards
           WHERE number['grpo.advantage'] > 1 AND reward = 'quality' AND score < 0.25"""
    )
    assert answer.rows == [[len(story.least_bad)]]


def test_an_attribute_never_seen_before_can_be_filtered_at_once(engine: BoundedSql):
    assert engine.query("SELECT count(*) FROM spans WHERE text['never.seen'] = 'x'").rows == [[0]]
    (row,) = engine.query("SELECT count(*) FROM spans WHERE number['reward.quality.mean'] > 0").rows
    assert 150 < row[0] <= 200


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_ready_made_question_is_answered(engine: BoundedSql, name: str):
    question = QUESTIONS[name]
    answer = engine.query(question.sql, question.parameters)
    json.dumps(answer.records())
    assert answer.rows or name == "reward_failures"


def test_ready_made_answers_are_those_of_the_story(engine: BoundedSql, story: Story):
    errors = engine.query(QUESTIONS["parse_errors"].sql).records()
    newline = next(e for e in errors if e["parse_error"] == "raw_newline")
    assert (newline["completions"], newline["parse_error_at"]) == (len(story.newline), "0x0A")
    assert (newline["first_step"], newline["last_step"]) == (18, 28)
    sure = engine.query(QUESTIONS["overconfident_and_bad"].sql, {"confidence": 0.8, "quality": 0.25}).records()
    assert {row["task_id"] for row in sure[:2]} == set(story.tasks)


def test_answers_are_cut_at_the_row_limit_and_say_so(engine: BoundedSql):
    answer = engine.query("SELECT * FROM range(51)")
    assert len(answer.rows) == 50
    assert answer.truncated == "rows: only the first 50 are shown"
    assert engine.query("SELECT * FROM range(50)").truncated is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW spans",
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO spans VALUES (1)",
        "DELETE FROM spans",
        "UPDATE spans SET run = 'x'",
        "DROP VIEW rewards",
        "COPY (SELECT 1) TO '{out}'",
        "COPY spans TO '{out}'",
        "EXPORT DATABASE '{out}'",
        "ATTACH '{out}' AS other",
        "INSTALL httpfs",
        "LOAD '{out}'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE SELECT 1",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_parquet('{parquet}')",
        "SELECT * FROM '{parquet}'",
        "SELECT * FROM glob('/*')",
        "SELECT content FROM read_blob('{secret}')",
        "SELECT * FROM read_json_auto('http://127.0.0.1:1/x')",
        "WITH x AS (SELECT * FROM read_text('{secret}')) SELECT * FROM x",
        "SELECT getenv('HOME')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{out}''')",
        "not sql at all",
        "",
    ],
)
def test_writes_files_settings_and_second_statements_are_refused(
    engine: BoundedSql, folder: Path, tmp_path: Path, sql: str
):
    secret = tmp_path / "secret.txt"
    secret.write_text("s3cret")
    places = {"out": tmp_path / "out", "secret": secret, "parquet": folder / "spans.parquet"}
    with pytest.raises(InputError) as refusal:
        engine.query(sql.format(**places))
    assert "s3cret" not in str(refusal.value)
    assert not (tmp_path / "out").exists()
    assert engine.query("SELECT count(*) FROM spans").rows == [[200 * 57]]


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
        "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c WHERE a.range + b.range = c.range",
        "SELECT length(repeat('x', 3000000000))",
    ],
)
def test_endless_queries_are_ended_and_the_next_is_answered(folder: Path, sql: str):
    with BoundedSql({"spans": [folder]}, VIEWS, Limits(seconds=1)) as engine:
        with pytest.raises(InputError, match=r"took more than 1 s|failed"):
            engine.query(sql)
        assert engine.query("SELECT count(*) FROM steps").rows == [[200]]


def test_a_parameter_is_a_value_never_sql(engine: BoundedSql):
    answer = engine.query("SELECT $x AS x", {"x": "1); DROP VIEW spans; --"})
    assert answer.rows == [["1); DROP VIEW spans; --"]]


def test_files_sealed_later_are_seen(folder: Path, tmp_path: Path):
    table = pq.read_table(folder / "spans.parquet")
    pq.write_table(table.slice(0, 57), tmp_path / "a.parquet")
    with BoundedSql({"spans": [tmp_path]}, VIEWS) as engine:
        assert engine.query("SELECT count(*) FROM completions").rows == [[8]]
        pq.write_table(table.slice(57, 57), tmp_path / "b.parquet")
        assert engine.query("SELECT count(*) FROM completions").rows == [[16]]
