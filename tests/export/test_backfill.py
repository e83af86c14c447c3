"""Scores for what a real Phoenix already has: written once, updated by the same model, beside another one's."""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import httpx
import pytest
from serving.test_switch import make_run

from observer_core.traces.trace import Trace
from observer_pipeline.phoenix_traces import send_to_project
from observer_pipeline.sources import requests_of

pytestmark = pytest.mark.heavy


def annotations(base: str, project: str, trace_ids: list[str]) -> list[dict]:
    answer = httpx.get(
        f"{base}/v1/projects/{project}/trace_annotations",
        params={"trace_ids": trace_ids, "include_annotation_names": ["observer.p_wrong"], "limit": 1000},
        timeout=30,
    )
    return [] if answer.status_code == 404 else answer.raise_for_status().json()["data"]


def test_a_project_is_scored_after_the_fact(phoenix_url: str, tmp_path: Path):
    project = f"old-{uuid.uuid4().hex[:8]}"
    source = f"phoenix://{phoenix_url.removeprefix('http://')}/{project}"
    traces = [
        Trace(f"Where is {i}?", "I could not find it." if i % 2 else "In the north.", uuid.uuid4().hex)
        for i in range(6)
    ]
    send_to_project(source, requests_of(traces, project=project, now_ns=time.time_ns()))
    ids = [trace.trace_id or "" for trace in traces]
    run = make_run(tmp_path / "run", seed=1)

    def backfill(*arguments: str) -> dict:
        done = subprocess.run(
            [sys.executable, "-c", "from observer_pipeline.cli import main; main()", "backfill", source, "--json",
             *arguments],
            env=os.environ | {"OBSERVER_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def written(count: int) -> list[dict]:
        until = time.monotonic() + 60
        while len(found := annotations(phoenix_url, project, ids)) < count and time.monotonic() < until:
            time.sleep(0.5)
        return found

    until = time.monotonic() + 60
    while (first := backfill())["traces"] < 6 and time.monotonic() < until:
        time.sleep(1)
    assert (first["annotated"], first["failed"], first["identifier"]) == (6, 0, "observer:builtin-1")
    found = written(6)
    assert {row["trace_id"] for row in found} == set(ids)
    assert {(row["annotator_kind"], row["identifier"]) for row in found} == {("CODE", "observer:builtin-1")}
    backfill()
    backfill("--run", str(run.path))
    found = written(12)
    assert len(found) == 12, "the same model updates its own, another one adds its own"
    assert {row["identifier"] for row in found} == {"observer:builtin-1", f"observer:{run.version}"}
