"""`observer train`: bad settings are refused at once, progress is plain lines, MLflow gets everything."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from decision.conftest import easy_traces

from observer_core.rundir import open_run
from observer_core.traces.jsonl import write_jsonl
from observer_core.traces.splits import split_of

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Threads only wait for each other on networks this small."""


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "observer_pipeline.cli", "train", *args]


def observer(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), capture_output=True, text=True, timeout=280, check=False, env=os.environ | ONE_THREAD | environ
    )


def test_bad_settings_are_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from observer_pipeline.cli import main\n"
        "for args in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['observer', 'train', '--family', 'laya', '--data', 'none', '--out', 'run', *args]\n"
        "    try: main()\n"
        "    except SystemExit as error: print('exit', error.code, file=sys.stderr)\n"
        "print([m for m in ('torch', 'transformers', 'accelerate', 'mlflow', 'dagster') if m in sys.modules])\n"
    )
    cases = {
        "--precision fp64": "--precision must be auto, fp32 or bf16, not 'fp64'",
        "--accumulate 0": "--accumulate must be a number above 0, not 0",
        "--lr nan": "--lr must be a number above 0, not nan",
        "--epochs -1": "--epochs must be a number above 0, not -1.0",
        "--checkpoint-steps 0": "--checkpoint-steps must be 1 or more, not 0",
        "--seed 99999999999999999999": "--seed must be below 2**63",
        "--base x": "--base belongs to Kev checkpoints, not to family laya",
        "--int8 --no-onnx": "--int8 quantises the graph that --no-onnx leaves out",
        "--family baseline --preset laya-mini": "the baseline starts from nothing; leave out --preset",
        "--replay-share 0.5": "--replay-share and --replay-rows need --replay SRC",
        "--replay x --replay-share 1": "--replay-share must be from 0 to below 1, not 1.0",
        "--replay x --replay-share 0.2 --replay-rows 5": "contradict each other",
        "--otlp localhost:4317": "--otlp localhost:4317 is no http address",
        "--otlp http://h --otlp-header key": "--otlp-header 'key': write NAME=VALUE",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([case.split() for case in cases])],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "[]"
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["exit 2"] * len(cases)
    for line, says in zip(lines[::2], cases.values(), strict=True):
        assert says in line


@pytest.mark.heavy
def test_everything_goes_to_mlflow_and_progress_is_lines(tiny_encoder: Path, tmp_path: Path) -> None:
    """Against MLflow's own SQLite store."""
    write_jsonl(tmp_path / "traces.jsonl", easy_traces(240))
    uri = f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}"
    options = ["--family", "laya", "--data", str(tmp_path / "traces.jsonl"), "--out", str(tmp_path / "run")]
    options += ["--preset", str(tiny_encoder), "--no-onnx", "--lr", "2e-3", "--head-epochs", "1", "--accumulate", "2"]
    options += ["--batch-tokens", "512", "--weights"]
    done = observer(*options, MLFLOW_TRACKING_URI=uri, MLFLOW_EXPERIMENT_NAME="shop", OBSERVER_HOME=str(tmp_path / "h"))
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")

    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("shop")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    expected = {"family": "laya", "epochs": "1.0", "accumulate": "2", "tokens_per_batch": "512", "precision": "auto"}
    assert expected.items() <= found.data.params.items()
    assert found.data.tags["train_data_sha"] == run.manifest.train_data_sha
    assert found.data.tags["run_version"] == run.version
    assert not [tag for tag in found.data.tags if "git" in tag.lower()]
    training = json.loads((run.checkpoint / "rl_agent_config.json").read_text())["training"]
    for name in ("step_loss", "learning_rate", "grad_norm"):
        history = client.get_metric_history(found.info.run_id, name)
        assert sorted(metric.step for metric in history) == list(range(1, training["steps"] + 1))
    assert {"head/step_loss", "validation_loss", "validation_auroc", "train_loss"} <= found.data.metrics.keys()
    assert found.data.metrics["all/auroc"] == run.metrics()["all"]["auroc"]["value"]
    assert found.data.metrics["weights/cut"] == 0
    artifacts = {file.path for file in client.list_artifacts(found.info.run_id, "report")}
    assert artifacts == {f"report/{name}" for name in ("manifest.json", "metrics.json", "report.md", "report.html")}

    # Plain lines: what is done, how far, and for training the step, loss, speed and time left.
    lines = done.stderr.splitlines()
    trained = sum(split_of(trace) == "train" for trace in easy_traces(240))
    assert f"weights: 0%, {trained} traces are worth {trained} of equal weight; none was cut" in lines
    n = training["steps"]
    (last,) = [line for line in lines if line.startswith("training: ")][-1:]
    assert f"/{n}, loss " in last
    assert " tokens/s, " in last
    assert last.endswith(" left")
    assert len(lines) < 40


@pytest.mark.heavy
def test_on_a_terminal_one_line_shows_loss_speed_and_time_left(tiny_encoder: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "traces.jsonl", easy_traces(200))
    main, terminal = pty.openpty()
    options = ["--family", "laya", "--data", str(tmp_path / "traces.jsonl"), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        command(*options, "--preset", str(tiny_encoder), "--no-onnx", "--head-epochs", "0"),
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env=os.environ | ONE_THREAD | {"COLUMNS": "160", "TERM": "xterm"},
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(main, 65536)
        except OSError:  # the terminal's other end was closed
            break
    os.close(main)
    assert process.wait(60) == 0
    text = shown.decode(errors="replace")
    assert "training: step " in text
    assert ", loss " in text
    assert " tokens/s, " in text
    assert " left" in text


def test_a_mlflow_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "traces.jsonl", easy_traces(200))
    done = observer(
        "--family", "baseline", "--data", str(tmp_path / "traces.jsonl"), "--out", str(tmp_path / "run"),
        MLFLOW_TRACKING_URI="http://127.0.0.1:9", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )  # fmt: skip
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("observer: MLflow at http://127.0.0.1:9 fails (")
    assert message.endswith("start it, or unset MLFLOW_TRACKING_URI to train without")
    assert not (tmp_path / "run").exists()
