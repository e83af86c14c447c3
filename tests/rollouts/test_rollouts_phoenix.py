"""A run's spans in a real Phoenix, and the alert on the same run at a real local webhook."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from observer_core.rollouts.emit import EmitOptions, emit
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, rewards_for
from observer_core.rollouts.story import Story

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
PROJECT = "rollouts-test"


def pages(url: str, **parameters: Any) -> list[dict]:
    found: list[dict] = []
    cursor = None
    while True:
        extra = {"cursor": cursor} if cursor else {}
        answer = httpx.get(
            f"{url}/v1/projects/{PROJECT}/spans", params={"limit": 1000, **parameters, **extra}, timeout=60
        )
        if answer.status_code == 404:
            return found
        body = answer.raise_for_status().json()
        found += body["data"]
        cursor = body.get("next_cursor")
        if not cursor:
            return found


def poll(read: Callable[[], list[dict]], size: int) -> list[dict]:
    """Phoenix stores what it has acknowledged a moment later."""
    deadline = time.monotonic() + 180
    while len(found := read()) < size and time.monotonic() < deadline:
        time.sleep(1)
    return found


def test_57_spans_a_step_arrive_with_numbers_as_numbers(phoenix_url: str, story: Story, tmp_path: Path):
    path = tmp_path / "story.parquet"
    pq.write_table(story.table.slice(16 * 8, 5 * 8), path)
    log = RolloutLog(path, run="phoenix-test")
    options = EmitOptions(f"{phoenix_url}/v1/traces", project=PROJECT)
    for _ in range(2):  # sending twice changes nothing: ids are stable
        result = emit(log, rewards_for(log), options, GradeOptions(workers=1))
        assert result.spans == 5 * 57
        found = poll(lambda: pages(phoenix_url), 5 * 57)
        assert len(found) == 5 * 57
    kinds = [span["span_kind"] for span in found]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"CHAIN": 5, "LLM": 40, "EVALUATOR": 240}
    (completion,) = pages(phoenix_url, attribute=f"completion.row:{0}")
    shown = completion["attributes"]
    row = story.table.slice(16 * 8, 1).to_pylist()[0]
    assert shown["output.value"] == row["completion"]
    assert shown["grpo.advantage"] == row["advantage"]
    assert isinstance(shown["reward.quality.score"], float)
    assert isinstance(shown["training.step"], int)
    in_step = pages(phoenix_url, attribute="training.step:18", span_kind="LLM")
    newlines = [r for r in story.newline if 17 * 8 <= r < 18 * 8]
    assert len(in_step) == 8
    assert len(pages(phoenix_url, attribute="completion.parse_error:raw_newline", span_kind="LLM")) == len(
        [r for r in story.newline if 16 * 8 <= r < 21 * 8]
    )
    assert sum(s["status_code"] == "ERROR" for s in in_step) == len(newlines)
