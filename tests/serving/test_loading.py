"""A service that listens while its model loads: what it takes in, what it says, and what ends it."""

import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving.harness import Service, make_request, new_trace, wait_until
from serving.test_switch import make_run

import observer_core
from observer_core import environment
from observer_core.decision import load
from observer_core.decision.golden import golden_traces
from observer_core.decision.scorer import RawScore
from observer_core.errors import InputError
from observer_core.rundir import CHECKPOINT, MANIFEST, Manifest, RunDirectory, open_run
from observer_serving.config import LocalSettings, Settings
from observer_serving.loading import Loading
from observer_serving.score.models import load_stage
from observer_serving.start_checks import StartChecks

TRACE = {"question": "Which river flows through Vienna?", "final_answer": "The Danube."}
LOADING = "the model is loading"
WAITS = """
import pathlib, time
import observer_core.decision.load as load
replay = load.replay_golden
def replay_when_told(*given, **named):
    while not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)
    replay(*given, **named)
load.replay_golden = replay_when_told
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_run(tmp_path_factory.mktemp("loading") / "run", seed=1)


class Slow:
    """A service whose model loads for as long as `release` is not called."""

    def __init__(self, folder: Path, run: Path, **settings: Any) -> None:
        self.gate = folder / "gate"
        scorer = {"kind": "local", "run": str(run)} | settings.pop("scorer", {})
        policy = {"policy": {"keep_threshold": 0.0}}
        self.live = Service(folder / "home", {"scorer": scorer, "drain": "3s"} | policy | settings)
        self.live.prelude = WAITS.format(gate=str(self.gate))

    def start(self) -> Service:
        return self.live.start(ready=False)

    def release(self) -> None:
        self.gate.touch()


@pytest.fixture
def slow(tmp_path: Path, run: RunDirectory):
    started: list[Slow] = []

    def make(path: Path | None = None, **settings: Any) -> Slow:
        started.append(Slow(tmp_path, path or run.path, **settings))
        return started[-1]

    yield make
    for one in started:
        if one.live.process is not None and one.live.process.poll() is None:
            one.live.kill()


def readiness(live: Service) -> tuple[int, dict[str, str]]:
    answer = live.client.get(live.api + "/readyz")
    return answer.status_code, answer.json()["problems"]


def acknowledge(live: Service) -> set[str]:
    """A trace as JSON and one as spans, both acknowledged."""
    trace_id, span_ids = new_trace()
    answer = live.export(make_request((trace_id, span_ids)))
    assert (answer.status_code, answer.content) == (200, b"")
    return {live.post_trace(TRACE), trace_id.hex()}


def decided(live: Service, ids: set[str]) -> list[dict[str, Any]]:
    wait_until(lambda: len(live.decisions()) >= len(ids))
    rows = live.decisions()
    assert {row["trace_id"] for row in rows} == ids
    assert len(rows) == len(ids)
    return rows


def test_spans_are_taken_in_while_the_model_loads_and_decided_by_it(slow, run: RunDirectory):
    service = slow()
    live = service.start()
    assert readiness(live) == (503, {"scorer": LOADING})
    ids = acknowledge(live)
    wait_until(lambda: live.get("/v1/stats")["waiting_for_scorer"] == 2)
    assert live.get("/v1/stats")["model"] == "loading"
    assert live.decisions() == []
    service.release()
    wait_until(lambda: readiness(live) == (200, {}))
    rows = decided(live, ids)
    assert {(row["model"], row["model_version"], row["reason"]) for row in rows} == {("baseline", run.version, "score")}
    assert live.get("/v1/model")["model_version"] == run.version


def test_who_asks_for_a_score_waits_for_the_model(slow, run: RunDirectory):
    service = slow()
    live = service.start()
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(httpx.post(live.api + "/v1/traces:score", json=TRACE, timeout=30))
    )
    asking.start()
    wait_until(lambda: live.get("/v1/stats")["waiting_for_scorer"] == 1)
    service.release()
    asking.join()
    assert answers[0].status_code == 200, answers[0].text
    assert answers[0].json()["model_version"] == run.version


def test_who_asks_for_a_score_in_vain_is_told_to_come_back(slow):
    service = slow(scorer={"deadline": "50ms"})
    live = service.start()
    answer = live.client.post(live.api + "/v1/traces:score", json=TRACE)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "not decided yet" in answer.json()["error"]
    service.release()
    (row,) = live.wait_for_decisions(1)
    assert row["reason"] == "score", "the time it waited for the model is not held against it"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/model", None),
        ("POST", "/v1/model", {"kind": "builtin"}),
        ("PUT", "/v1/policy", {"keep_threshold": 0.5}),
        ("POST", "/v1/traces:score?dry_run=true", TRACE),
    ],
)
def test_what_needs_the_model_is_asked_to_come_back(slow, method: str, path: str, body: Any):
    live = slow().start()
    answer = live.client.request(method, live.api + path, json=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
    assert answer.json()["error"] == "the model is still loading; try again in a moment"


def test_a_model_that_fails_its_checks_ends_a_service_that_listens(slow, run: RunDirectory, tmp_path: Path):
    bad = make_run(tmp_path / "bad", seed=2)
    manifest = json.loads((bad.path / MANIFEST).read_text())
    manifest["golden"][0]["p_wrong_raw"] += 0.1
    (bad.path / MANIFEST).write_text(json.dumps(manifest))
    service = slow(bad.path)
    live = service.start()
    ids = acknowledge(live)
    service.release()
    assert live.process is not None
    assert live.process.wait(timeout=30) == 2
    last = live.log().splitlines()[-1]
    assert last.startswith(f"observer: run {bad.path}: golden trace")
    assert not (live.home / "serving" / "active.json").exists(), "a model that did not pass is never in force"
    again = slow()
    again.live.config.write_text(live.config.read_text().replace(str(bad.path), str(run.path)))
    again.release()
    assert {row["model_version"] for row in decided(again.live.start(), ids)} == {run.version}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_acknowledged_while_the_model_loads_outlives_the_process(slow, run: RunDirectory, how: signal.Signals):
    service = slow()
    live = service.start()
    ids = acknowledge(live)
    assert live.process is not None
    live.process.send_signal(how)
    assert live.process.wait(timeout=20) == (0 if how == signal.SIGTERM else -signal.SIGKILL)
    service.release()
    rows = decided(live.start(ready=False), ids)
    assert {(row["model_version"], row["reason"]) for row in rows} == {(run.version, "score")}


def test_settings_are_read_again_once_the_model_is_in_force(slow):
    service = slow()
    live = service.start()
    live.config.write_text(live.config.read_text().replace("keep_threshold: 0.0", "keep_threshold: 1.0"))
    before = live.get("/v1/policy")["policy_version"]
    assert live.process is not None
    live.process.send_signal(signal.SIGHUP)
    ids = acknowledge(live)
    assert live.get("/v1/policy")["policy_version"] == before
    service.release()
    wait_until(lambda: live.get("/v1/policy")["policy_version"] != before)
    decided(live, ids)


class Starts:
    """Loads one run as starts of a service do, and notes how many golden traces each of them scores."""

    def __init__(self, folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "proven.json"
        self.settings = LocalSettings(kind="local", run=run)
        self.replayed: list[int] = []
        load_scorer = load.load_scorer

        def counting(*given: Any, **named: Any) -> Any:
            scorer = load_scorer(*given, **named)
            raw = scorer.raw
            self.replayed.append(0)

            def count(traces: Any, **how: Any) -> list[RawScore]:
                self.replayed[-1] += len(traces)
                return raw(traces, **how)

            scorer.raw = count
            return scorer

        monkeypatch.setattr(load, "load_scorer", counting)

    def start(self) -> None:
        load_stage(self.settings, StartChecks(self.file, [open_run(self.settings.run)]))


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(tmp_path, make_run(tmp_path / "run", seed=3).path, monkeypatch)


ALL = len(golden_traces())


def test_a_restart_replays_one_golden_trace_until_something_changes(starts: Starts, monkeypatch: pytest.MonkeyPatch):
    starts.start()
    starts.start()
    assert starts.replayed == [ALL, 1]
    monkeypatch.setattr(environment, "_version", lambda library: f"another {library}")
    starts.start()
    monkeypatch.setattr(environment, "_CPUINFO", starts.file)
    starts.start()
    manifest = starts.settings.run / MANIFEST
    manifest.write_text(manifest.read_text() + "\n")
    starts.start()
    starts.start()
    assert starts.replayed[2:] == [ALL, ALL, ALL, 1]
    starts.file.write_text("[{")
    starts.start()
    starts.start()
    assert starts.replayed[6:] == [ALL, 1]
    monkeypatch.setattr(observer_core, "__file__", load.__file__)  # other code under this version
    starts.start()
    starts.start()
    assert starts.replayed[8:] == [ALL, 1]


def test_a_run_made_here_is_proven_and_one_made_elsewhere_is_not(starts: Starts):
    manifest = starts.settings.run / MANIFEST
    made = Manifest.model_validate_json(manifest.read_bytes())
    for place, scored in ((environment.environment(), 1), ("elsewhere", ALL), (None, ALL)):
        manifest.write_text(made.model_copy(update={"golden_environment": place}).to_json())
        starts.start()
        assert starts.replayed[-1] == scored
    torch = starts.settings.model_copy(update={"backend": "torch"})
    manifest.write_text(made.model_copy(update={"golden_environment": environment.environment()}).to_json())
    load_stage(torch, StartChecks(starts.file, [open_run(torch.run)]))
    assert starts.replayed[-1] == ALL, "another back end than the one that made them"


def test_a_proven_model_that_was_altered_since_is_refused(starts: Starts):
    starts.start()
    weights = next((starts.settings.run / CHECKPOINT).iterdir())
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(InputError, match=weights.name):
        starts.start()


def test_a_proven_model_that_computes_something_else_is_refused(run: RunDirectory):
    scorer = load.load_scorer(run)
    raw = scorer.raw
    scorer.raw = lambda traces, **how: [RawScore(score.p_wrong_raw + 0.01) for score in raw(traces, **how)]
    with pytest.raises(InputError, match="golden trace"):
        load.replay_golden(scorer, run, proven=True)


def test_a_model_that_fails_is_not_noted_as_proven(starts: Starts):
    manifest = open_run(starts.settings.run).manifest
    manifest.golden[-1].p_wrong_raw += 0.1  # not the one that a restart would ask
    (starts.settings.run / MANIFEST).write_text(manifest.to_json())
    for _ in range(2):
        with pytest.raises(InputError, match="golden trace"):
            starts.start()
    assert starts.replayed == [ALL, ALL]


def test_a_run_that_goes_away_while_it_is_loaded_ends_the_start(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever it raises: else the service would wait for its model for ever."""
    prepare = StartChecks.prepare

    def prepare_too_late(checks: StartChecks, run: RunDirectory, backend: Any) -> None:
        shutil.rmtree(run.path)
        prepare(checks, run, backend)

    monkeypatch.setattr(StartChecks, "prepare", prepare_too_late)
    loading = Loading(tmp_path / "serving", Settings.model_validate({"scorer": starts.settings.model_dump()}))
    loading.join(30)
    assert loading.done
    with pytest.raises((InputError, OSError)):
        loading.models()
