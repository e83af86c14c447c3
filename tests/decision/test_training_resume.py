"""A training killed with SIGKILL goes on to the same weights, predictions and metrics; a different one is refused."""

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from decision.conftest import easy_traces, quick

from observer_core.decision.train import train_run
from observer_core.decision.training.checkpoints import Checkpoints, open_checkpoints, partial_of
from observer_core.decision.training.determinism import random_state, reproducible, set_random_state
from observer_core.decision.training.health import TrainingFailedError
from observer_core.errors import InputError
from observer_core.rundir import METRICS, PREDICTIONS, RunDirectory
from observer_core.traces.jsonl import write_jsonl
from observer_core.traces.trace import Trace

TESTS = Path(__file__).parents[1]


def results(run: Path) -> tuple[bytes, dict, list[dict], float]:
    """What must be equal to the bit: weights, metrics, predictions, and the held-out loss that was reached."""
    training = json.loads((run / "checkpoint" / "rl_agent_config.json").read_text())["training"]
    return (
        (run / "checkpoint" / "model.safetensors").read_bytes(),
        json.loads((run / METRICS).read_text()),
        pq.read_table(run / PREDICTIONS).to_pylist(),
        training["validation_loss"],
    )


def killed(out: Path, encoder: Path, *when: str) -> list[tuple[int, list]]:
    """Exit status and output of each process of `killed_training.py`."""
    command = [sys.executable, str(TESTS / "decision" / "killed_training.py"), str(out), str(encoder), *when]
    environ = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    found, lines = [], []
    for line in map(json.loads, done.stdout.splitlines()):
        if isinstance(line, list) and line[0] == "exit":
            found.append((line[1], lines))
            lines = []
        else:
            lines.append(line)
    return found


@pytest.mark.heavy
def test_a_killed_training_goes_on_to_the_same_result(tiny_encoder: Path, tmp_path: Path) -> None:
    """Killed in the head's training, in LoRA's, and after both, by a real SIGKILL each time."""
    whole = train_run(easy_traces(200), tmp_path / "whole", quick(tiny_encoder))
    out = tmp_path / "out"
    head, lora, after, last = killed(out, tiny_encoder, "head/step_loss@3", "step_loss@7", "evaluating", "never")
    assert [status for status, _ in (head, lora, after, last)] == [-signal.SIGKILL] * 3 + [0]
    assert results(out) == results(whole.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]
    # Each process did no more than one step again, and told the metrics from the first step on.
    said = [[line for line in lines if isinstance(line, str)] for _, lines in (head, lora, after, last)]
    assert any(line.startswith("training the head, resumed: 2 of") for line in said[1])
    assert any(line.startswith("training, resumed: 6 of") for line in said[2])
    assert not any(": step " in line for line in said[3])  # both stages had ended before the last kill
    for name in ("head/step_loss", "step_loss"):
        told = [line[2] for line in last[1] if line[0] == name]
        assert told == list(range(1, len(told) + 1))
        assert len(told) >= 3


@pytest.mark.heavy
def test_the_command_killed_at_any_moment_ends_alike(tiny_encoder: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "traces.jsonl", easy_traces(240))
    environ = os.environ | {"OBSERVER_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

    def start(name: str) -> subprocess.Popen[bytes]:
        numbers = "--epochs 1 --head-epochs 1 --lr 2e-3 --head-lr 2e-3 --batch-tokens 1024 --checkpoint-steps 1"
        options = ["--family", "laya", "--data", str(tmp_path / "traces.jsonl"), "--preset", str(tiny_encoder)]
        options += [*numbers.split(), "--no-onnx", "--out", str(tmp_path / name)]
        command = [sys.executable, "-m", "observer_pipeline.cli", "train", *options]
        return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    whole = start("whole")
    assert whole.wait(280) == 0
    rng, kills, folder = random.Random(0), 0, partial_of(tmp_path / "out")

    def checkpoints() -> set[tuple[str, int]]:
        with contextlib.suppress(FileNotFoundError):  # the folder goes when the run is whole
            return {(file.name, file.stat().st_mtime_ns) for file in folder.glob("*.pt")}
        return set()

    while True:
        process, before, steps = start("out"), checkpoints(), 0
        wanted = rng.randint(1, 12) if kills < 2 else math.inf
        while process.poll() is None and steps < wanted:  # that many checkpoints later, at whatever moment that is
            time.sleep(rng.uniform(0.001, 0.02))
            if (now := checkpoints()) != before:
                before, steps = now, steps + 1
        if process.poll() is not None:
            assert process.returncode == 0
            break
        process.kill()
        process.wait()
        kills += 1
        if (tmp_path / "out").exists():  # it died after its work was done
            break
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    left = {path.name for path in tmp_path.iterdir()} - {"out.partial"}  # there if it died between rename and removal
    assert left == {"out", "traces.jsonl", "whole"}
    assert kills


def interrupted(out: Path, encoder: Path, traces: list[Trace], **changes: object) -> None:
    """A training that leaves checkpoints behind, as Ctrl-C does."""

    def stop(name: str, _value: float, step: int) -> None:
        if (name, step) == ("step_loss", 5):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(traces, out, quick(encoder, checkpoint_steps=2, **changes), on_metric=stop)
    assert partial_of(out).is_dir()


def test_another_training_is_not_taken_for_the_interrupted_one(tiny_encoder: Path, tmp_path: Path) -> None:
    traces, out = easy_traces(200), tmp_path / "out"
    interrupted(out, tiny_encoder, traces, seed=3)
    before = {file.name: file.read_bytes() for file in partial_of(out).iterdir()}
    changed = easy_traces(200)
    next(t for t in changed if t.final_answer.startswith("red")).evidence = ["blue"]
    (other := tmp_path / "other").mkdir()
    for file in tiny_encoder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    for data, options, says in (
        (traces, quick(tiny_encoder, seed=4), "began with seed 3, not 4"),
        (traces, quick(tiny_encoder, seed=3, epochs=2.0), "began with epochs 1.5, not 2.0"),
        (changed, quick(tiny_encoder, seed=3), r"began with \w+ data [0-9a-f]{16}, not [0-9a-f]{16}"),
        (traces[::-1], quick(tiny_encoder, seed=3), r"began with train data"),
        (traces, quick(other, seed=3), r"began with starting point tiny@\w+, not other@"),
    ):
        with pytest.raises(InputError, match=f"{out.name}.partial holds a training that {says}.*--fresh"):
            train_run(data, out, options)
    assert {file.name: file.read_bytes() for file in partial_of(out).iterdir()} == before
    fresh = train_run(traces, out, quick(tiny_encoder, seed=4, epochs=0.3), fresh=True)
    assert not partial_of(out).exists()
    assert fresh.manifest.training["options"]["seed"] == 4


def test_a_broken_checkpoint_is_named_and_runs_no_code(tiny_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    interrupted(out, tiny_encoder, easy_traces(200))

    class Payload:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"fitted": Payload()}, partial_of(out) / "lora.pt")
    with pytest.raises(InputError, match=r"lora\.pt is broken .*--fresh"):
        train_run(easy_traces(200), out, quick(tiny_encoder))
    assert not (tmp_path / "ran").exists()


def test_two_processes_cannot_train_to_one_place(tmp_path: Path) -> None:
    def open_again(**identity: object):
        return open_checkpoints(tmp_path / "out", identity, fresh=False, seconds=60, steps=None)

    (tmp_path / ".out.0123abcd.tmp").mkdir()  # what a kill leaves
    (mine := tmp_path / ".out.2.0123abcd.tmp").mkdir()  # what a training to `out.2` is writing
    with open_again(seed=1):
        mine.rmdir()
        with pytest.raises(InputError, match="another process is training to"), open_again(seed=1):
            pass
        assert partial_of(tmp_path / "out").is_dir()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TrainingFailedError), open_again(seed=1) as checkpoints:
        checkpoints.stage("lora").save({"step": 1})
        raise TrainingFailedError("diverged")
    assert list(tmp_path.iterdir()) == []  # it would fail again


def test_checkpoints_come_by_time_and_by_steps_and_take_no_more_than_their_share(tmp_path: Path) -> None:
    now = [0.0]
    stage = Checkpoints(tmp_path, seconds=60, steps=10, clock=lambda: now[0]).stage("lora")
    assert [stage.due(step) for step in (1, 9, 10)] == [False, False, True]
    now[0] = 61
    assert stage.due(1)
    stage.save({})
    assert not stage.due(1)
    now[0] = 200
    slow = Checkpoints(tmp_path, seconds=60, clock=lambda: now.__setitem__(0, now[0] + 5.0) or now[0]).stage("slow")
    slow.save({})  # takes 5 s by this clock: with a share of 5 % the next is due after 100 s
    now[0] += 61
    assert not slow.due(1)
    now[0] += 40
    assert slow.due(1)


def test_all_random_numbers_are_seeded_put_back_and_saved() -> None:
    def draw() -> tuple:
        return torch.rand(2).tolist(), np.random.rand(2).tolist(), [random.random() for _ in range(2)]

    outside = random_state()
    with reproducible(7):
        first, state = draw(), random_state()
        second = draw()
        set_random_state(state)
        assert draw() == second
    set_random_state(outside)
    expected = draw()
    set_random_state(outside)
    with reproducible(7):
        assert draw() == first
    assert draw() == expected


def test_a_finished_run_says_how_it_was_trained(laya_run: RunDirectory) -> None:
    training = laya_run.manifest.training
    assert training["options"]["seed"] == 0
    assert training["notes"]["Labeled traces"].startswith("train ")
