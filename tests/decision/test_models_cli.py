"""`observer train` and `observer score` as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from decision.conftest import easy_traces

from observer_core.decision.training.options import refuse_idle
from observer_core.rundir import RunDirectory
from observer_core.traces.jsonl import write_jsonl
from observer_core.traces.trace import Trace


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "home"))


def observer(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "observer_pipeline.cli", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240, check=False)


def test_train_prints_the_model_beside_its_interval(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "traces.jsonl", easy_traces(240))
    done = observer(
        "train", "--family", "baseline", "--data", str(tmp_path / "traces.jsonl"), "--out", str(tmp_path / "run")
    )
    assert done.returncode == 0, done.stderr
    for name in ("AUROC", "recall at 5 % review", "recall at 20 % review"):
        assert f"{name} " in done.stdout
    assert (tmp_path / "run" / "manifest.json").is_file()
    again = observer("train", "--family", "baseline", "--data", "x", "--out", str(tmp_path / "run"))
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("family", "option"), [("laya", "--head-epochs"), ("kev", "--head-lr"), ("kev", "--lora-rank")]
)
def test_what_a_training_that_goes_on_would_not_heed_is_refused(tmp_path: Path, family: str, option: str) -> None:
    done = observer(
        "train", "--family", family, "--data", "x", "--out", str(tmp_path / "run"), "--init-from", "y", option, "4"
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{option} has no effect" in done.stderr


def test_laya_goes_on_with_new_adapters_of_any_rank() -> None:
    refuse_idle("laya", {"lora_rank", "epochs"})


def test_score_takes_a_trace_or_its_spans(laya_run: RunDirectory, tmp_path: Path) -> None:
    trace = Trace("question 1", "red " * 15, trace_id="ab" * 16)
    by_json = observer("score", "-", "--run", str(laya_run.path), stdin=json.dumps(trace.to_json()))
    assert by_json.returncode == 0, by_json.stderr
    decision = json.loads(by_json.stdout)
    assert decision["trace_id"] == "ab" * 16
    assert decision["model"] == "laya-tiny"
    assert decision["model_version"] == laya_run.version
    assert decision["p_wrong"] > 0.5
    assert set(decision["answers"]) == {"answers_question"}

    from observer_core.traces.otlp import write_otlp_file
    from observer_pipeline.sources import requests_of

    write_otlp_file(tmp_path / "spans.json", requests_of([trace], project="shop", now_ns=10**18))
    by_spans = observer("score", str(tmp_path / "spans.json"), "--run", str(laya_run.path))
    assert by_spans.returncode == 0, by_spans.stderr
    from_spans = json.loads(by_spans.stdout)
    assert from_spans["p_wrong"] == pytest.approx(decision["p_wrong"], abs=1e-9)
    assert from_spans["project"] == "shop"


def test_score_without_a_run_says_that_the_heuristic_scored(tmp_path: Path) -> None:
    done = observer("score", "-", stdin=json.dumps(Trace("q", "a").to_json()))
    assert json.loads(done.stdout)["model"] == "builtin"


@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        ("{", "not JSON"),
        ('{"question": "q"}', "'final_answer' is missing"),
        ('{"resourceSpans": []}', "holds 0 traces"),
    ],
)
def test_score_names_what_is_wrong(stdin: str, says: str) -> None:
    done = observer("score", "-", stdin=stdin)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
