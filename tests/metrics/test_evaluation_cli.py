"""`observer evaluate` and `observer compare`, with real runs of the baseline family."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from decision.test_jev import reference
from jevcompat import mock
from typer.testing import CliRunner

from observer_core.decision.train import TrainOptions, train_run
from observer_core.errors import InputError
from observer_core.traces.jsonl import write_jsonl
from observer_core.traces.splits import split_of
from observer_core.traces.trace import ToolCall, Trace
from observer_pipeline.cli import build_app


def traces(seed: int, questions: int = 160) -> list[Trace]:
    """Wrong answers are more often unsupported and come after failed calls; right ones are in the evidence."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(questions):
        for agent in ("a", "b"):
            wrong = rng.random() < 0.4
            supported = rng.random() < (0.3 if wrong else 0.8)
            failed = rng.random() < (0.5 if wrong else 0.2)
            found.append(
                Trace(
                    question=f"In which city was person {i} of series {seed} born?",
                    final_answer=f"City{i}" if supported else f"Town{i}",
                    trace_id=f"{seed}-{i}-{agent}",
                    tool_calls=[ToolCall("search", {"q": f"person {i}"}, status="error" if failed else "ok")],
                    evidence=[f"Person {i} was born in City{i}."],
                    label="wrong" if wrong else "correct",
                    model=agent,
                )
            )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two runs, `runs/a` trained on data.jsonl and `runs/b` on other questions."""
    root = tmp_path_factory.mktemp("cli")
    for name, seed in (("a", 1), ("b", 2)):
        train_run(traces(seed), root / "runs" / name, TrainOptions(family="baseline"))
    write_jsonl(root / "data.jsonl", traces(1))
    return root


COMPARED = ("compare", "--runs", "runs/a", "runs/b", "--data", "data.jsonl")


def observer(*arguments: object) -> str:
    result = CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_evaluate_uses_test_questions_only_and_says_so(folder):
    rows = traces(1)
    held_out = sum(split_of(trace) == "test" for trace in rows)
    out = folder / "evaluation"
    text = observer("evaluate", "--run", folder / "runs" / "a", "--data", folder / "data.jsonl", "--out", out)
    assert f"{held_out} labeled traces of" in text
    assert f"Rows: the {held_out} traces of test questions; {len(rows) - held_out} of questions" in text
    assert "AUROC" in text
    assert "Promotion gate: a is not promoted." in text
    assert sorted(p.name for p in out.iterdir()) == ["metrics.json", "predictions.parquet", "report.html", "report.md"]
    as_json = json.loads(
        observer("evaluate", "--run", folder / "runs" / "a", "--data", folder / "data.jsonl", "--json")
    )
    assert as_json["metrics"] == json.loads((out / "metrics.json").read_text())
    saved = json.loads((folder / "runs" / "a" / "metrics.json").read_text())
    assert as_json["metrics"]["all"]["auroc"] == saved["all"]["auroc"]  # the same rows as in training's own evaluation


def test_evaluating_on_the_training_data_is_noticed(folder):
    data, runs = folder / "data.jsonl", folder / "runs"
    own = observer("evaluate", "--run", runs / "a", "--data", data, "--split", "all")
    assert "Warning: a was trained on these very traces; this is no held-out result" in own
    other = observer("evaluate", "--run", runs / "b", "--data", data, "--split", "all")
    assert "Warning: a held-out result only if no run was trained on any of these questions" in other


def test_compare_sets_runs_side_by_side_and_judges_the_last_against_the_first(folder):
    runs, data = folder / "runs", folder / "data.jsonl"
    text = observer("compare", "--runs", runs / "a", runs / "b", "--data", data)
    assert "Promotion gate: a stays." in text
    assert "test questions; the gate asks for 200." in text
    found = json.loads(observer("compare", "--runs", runs / "a", runs / "b", "--data", data, "--json"))
    assert (found["scorer"], found["gate"]["champion"], found["gate"]["promote"]) == ("b", "a", False)
    assert found["differences"][0]["differences"]["auroc"]["lo"] is not None
    assert found["differences"][0]["n"] == found["metrics"]["all"]["auroc"]["n"]


def test_runs_of_one_name_are_told_apart(folder, monkeypatch):
    monkeypatch.chdir(folder)
    shutil.copytree("runs/b", "copy/a")
    text = observer("compare", "--runs", "runs/a", "copy/a", "--data", "data.jsonl")
    assert "Promotion gate: runs/a stays." in text
    with pytest.raises(InputError, match="runs/b is given twice"):
        observer("compare", "--runs", "runs/b", "runs/../runs/b", "--data", "data.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--runs", "runs/a", "--data", "data.jsonl"], "one run cannot be compared"),
        (["evaluate", "--run", "runs/none", "--data", "data.jsonl"], "no run directory at runs/none"),
        (
            ["evaluate", "--run", "runs/a", "--data", "unlabeled.jsonl"],
            "none of the 1 traces of unlabeled.jsonl has a label",
        ),
        (
            ["evaluate", "--run", "runs/a", "--data", "train.jsonl"],
            "is of a test question; give more traces, or --split all",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    write_jsonl(folder / "unlabeled.jsonl", [Trace(question="q", final_answer="a")])
    write_jsonl(folder / "train.jsonl", [Trace(question="q", final_answer="a", label="wrong", split="train")])
    with pytest.raises(InputError) as caught:
        observer(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def jev_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, name: str) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OBSERVER_HOME", str(folder / name))
    monkeypatch.delenv("TYPESAFE_DEFAULT_MODEL", raising=False)
    if url is None:
        monkeypatch.delenv("TYPESAFE_API_KEY", raising=False)
    else:
        monkeypatch.setenv("TYPESAFE_API_KEY", "any")
        monkeypatch.setenv("TYPESAFE_BASE_URL", url)


def test_jev_without_a_key_is_not_run_and_the_reports_say_so(folder, monkeypatch):
    jev_folder(folder, monkeypatch, None, "home-none")
    text = observer(*COMPARED, "--jev", "--out", "no-key")
    assert "not run" in next(line for line in text.splitlines() if line.startswith("AUROC"))
    assert "jev (not run): no key in TYPESAFE_API_KEY" in text
    for name in ("report.md", "report.html"):
        page = (folder / "no-key" / name).read_text()
        assert "not run" in page
        assert "no key in TYPESAFE_API_KEY" in page
    assert "no key" in json.loads(observer(*COMPARED, "--jev", "--json"))["not_run"]["jev"]


def test_jev_is_set_beside_the_runs_on_the_same_traces(folder, monkeypatch):
    config = mock.MockConfig()
    with reference(config) as url:
        jev_folder(folder, monkeypatch, url, "home-jev")
        found = json.loads(observer(*COMPARED, "--jev", "--json"))
        asked = config.requests
        assert observer(*COMPARED, "--jev")
        assert config.requests == asked, "the second time everything is cached"
    n = found["metrics"]["all"]["auroc"]["n"]
    jev = next(difference for difference in found["differences"] if difference["b"] == "jev")
    assert jev["n"] == n == found["others"]["jev"]["all"]["auroc"]["n"]
    assert jev["differences"]["auroc"]["lo"] is not None
    assert set(found["others"]["jev"]["natural"]) == set(found["metrics"]["natural"])
    assert {"natural", "all_no_partial"} <= set(found["differences_by_slice"])
    assert "calibrated (" in found["notes"]["jev"]
    assert "answered by jevcompat-mock-0.1" in found["notes"]["jev"]
    assert found["not_run"] == {}


def test_what_jev_would_cost_needs_an_agreement(folder, monkeypatch):
    config = mock.MockConfig()
    with reference(config) as url:
        jev_folder(folder, monkeypatch, url, "home-cost")
        with pytest.raises(InputError, match=r"about USD .* more than USD 0 needs your agreement: pass --yes"):
            observer(*COMPARED, "--jev", "--max-usd", "0")
        assert config.requests == 0, "nothing was asked"
        assert observer(*COMPARED, "--jev", "--max-usd", "0", "--yes")


def test_one_run_can_be_set_beside_jev(folder, monkeypatch):
    with reference() as url:
        jev_folder(folder, monkeypatch, url, "home-one")
        found = json.loads(observer("compare", "--runs", "runs/a", "--data", "data.jsonl", "--jev", "--json"))
    assert [difference["b"] for difference in found["differences"]] == ["jev"]
    assert found["gate"]["champion"] is None
    jev_folder(folder, monkeypatch, None, "home-one")
    text = observer("compare", "--runs", "runs/a", "--data", "data.jsonl", "--jev")
    assert "jev (not run): no key" in text
