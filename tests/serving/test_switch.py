"""Switching the model of a running service: by path, by upload, refused, rolled back, kept over a restart."""

import hashlib
import io
import json
import tarfile
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving.harness import Service

from observer_core.decision.baseline import BaselineModel
from observer_core.decision.golden import make_golden
from observer_core.questions import default_questions
from observer_core.rundir import CHECKPOINT, Manifest, RunDirectory, new_run, open_run, seal
from observer_core.traces.trace import ToolCall, Trace

TRACE = {"question": "Which river flows through Vienna?", "final_answer": "The Danube."}
KEEP_ALL = {"keep_threshold": 0.0}


def make_run(out: Path, *, seed: int) -> RunDirectory:
    """A real baseline run, fitted on generated traces."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(80) < 0.5
    traces = [
        Trace(
            question=f"Where is place {i}?",
            final_answer="I could not find it." if w else f"Place {i} is in the north.",
            tool_calls=[ToolCall("search", {"q": i}, "error" if w and rng.random() < 0.5 else "ok")],
            evidence=[] if w else [f"Place {i} is in the north."],
        )
        for i, w in enumerate(wrong)
    ]
    with new_run(out) as folder:
        model = BaselineModel.fit(traces, wrong, np.ones(len(traces)))
        (folder / CHECKPOINT).mkdir()
        model.save(folder / CHECKPOINT)
        manifest = Manifest(family="baseline", model="baseline", questions=default_questions())
        manifest.golden = make_golden(lambda golden: model.p_wrong_raw(golden).tolist())
        seal(folder, manifest)
    return open_run(out)


def packed(run: RunDirectory) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(run.path, arcname="run")
    return buffer.getvalue()


def upload(service: Service, archive: bytes, **params: str) -> httpx.Response:
    return httpx.post(
        service.api + "/v1/model",
        content=archive,
        params=params,
        headers={"content-type": "application/x-tar"},
        timeout=60,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunDirectory]:
    folder = tmp_path_factory.mktemp("runs")
    return [make_run(folder / f"run{seed}", seed=seed) for seed in (1, 2)]


def test_switch_by_path_upload_rollback_and_restart(service, runs: list[RunDirectory]):
    live = service(policy=KEEP_ALL)
    assert live.get("/v1/model")["model"] == "builtin"
    first = httpx.post(live.api + "/v1/model", json={"run": str(runs[0].path), "reason": "try"}, timeout=60).json()
    assert (first["model"], first["model_version"]) == ("baseline", runs[0].version)
    archive = packed(runs[1])
    answer = upload(live, archive, sha256=hashlib.sha256(archive).hexdigest(), version="2")
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_version"] == "2"
    trace_id = live.post_trace(TRACE)
    live.wait_for_decisions(1)
    assert live.get(f"/v1/decisions/{trace_id}")["model_version"] == "2"
    live.kill()
    live.start()
    assert live.get("/v1/model")["model_version"] == "2", "the last accepted model holds"
    back = httpx.post(live.api + "/v1/model:rollback", json={"reason": "worse"}, timeout=60).json()
    assert back["model_version"] == runs[0].version
    log = [json.loads(line) for line in (live.home / "serving" / "switches.jsonl").read_text().splitlines()]
    assert [(line["action"], line["version"], line["reason"]) for line in log] == [
        ("switch", runs[0].version, "try"),
        ("switch", "2", None),
        ("rollback", runs[0].version, "worse"),
    ]


def test_on_any_doubt_the_old_model_stays(service, runs: list[RunDirectory], tmp_path: Path):
    live = service()
    before = live.get("/v1/model")
    archive = packed(runs[0])
    assert "sha256" in upload(live, archive, sha256="0" * 64).json()["error"]
    assert "tar" in upload(live, b"no tar", sha256=hashlib.sha256(b"no tar").hexdigest()).json()["error"]

    altered = tmp_path / "altered"
    make_run(altered, seed=3)
    weights = next((altered / CHECKPOINT).iterdir())
    weights.write_bytes(weights.read_bytes() + b" ")
    answer = httpx.post(live.api + "/v1/model", json={"run": str(altered)}, timeout=60)
    assert answer.status_code == 400
    assert weights.name in answer.json()["error"]

    other_scores = tmp_path / "scores"
    manifest = make_run(other_scores, seed=4).manifest
    manifest.golden[0].p_wrong_raw = 1 - manifest.golden[0].p_wrong_raw
    (other_scores / "manifest.json").write_text(manifest.to_json())
    answer = httpx.post(live.api + "/v1/model", json={"run": str(other_scores)}, timeout=60)
    assert answer.status_code == 400
    assert "golden" in answer.json()["error"]

    assert live.get("/v1/model") == before
    trace_id = live.post_trace(TRACE)
    live.wait_for_decisions(1)
    assert live.get(f"/v1/decisions/{trace_id}")["model"] == "builtin"


def test_every_trace_is_decided_by_exactly_one_model_while_switching(service, runs: list[RunDirectory]):
    live = service(policy=KEEP_ALL)
    stop = threading.Event()
    sent: list[str] = []

    def send() -> None:
        while not stop.is_set():
            sent.append(live.post_trace(TRACE))

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(6):
        answer = httpx.post(live.api + "/v1/model", json={"run": str(runs[number % 2].path)}, timeout=60)
        assert answer.status_code == 200, answer.text
    stop.set()
    sender.join()
    decisions = {d["trace_id"]: d for d in live.wait_for_decisions(len(sent))}
    assert decisions.keys() == set(sent)
    score_of = {d["model_version"]: d["p_wrong"] for d in decisions.values()}
    assert {runs[0].version, runs[1].version} <= score_of.keys() | {"builtin-1"}
    assert all(d["p_wrong"] == score_of[d["model_version"]] for d in decisions.values())


def test_a_service_started_with_a_run(service, runs: list[RunDirectory]):
    live = service(scorer={"kind": "local", "run": str(runs[0].path), "version": "9"}, policy=KEEP_ALL)
    assert live.get("/v1/model")["model_version"] == "9"
    assert live.get("/readyz")["ready"]
