"""Trainings that kill themselves with SIGKILL: `python killed_training.py OUT ENCODER WHEN …`, each WHEN in a process
of its own, one after the other, all to the same OUT.

WHEN is `metric@step` (it dies when that metric is logged), the start of a progress text (it dies when that is shown), or
`never`. On stdout: a JSON line per metric and progress text, and `["exit", status]` after each process.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from decision.conftest import easy_traces, quick

from observer_core.decision.train import train_run


def tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def train(out: Path, encoder: Path, when: str) -> None:
    def on_metric(name: str, value: float, step: int) -> None:
        if f"{name}@{step}" == when:
            os.kill(os.getpid(), signal.SIGKILL)
        tell([name, value, step])

    def progress(doing: str, _fraction: float) -> None:
        if doing.startswith(when):
            os.kill(os.getpid(), signal.SIGKILL)
        tell(doing)

    options = quick(encoder, checkpoint_steps=2)
    train_run(easy_traces(200), out, options, on_metric=on_metric, progress=progress)


torch.set_num_threads(1)
for moment in sys.argv[3:]:
    pid = os.fork()  # this process has imported everything and started no thread
    if pid == 0:
        train(Path(sys.argv[1]), Path(sys.argv[2]), moment)
        os._exit(0)
    tell(["exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])])
