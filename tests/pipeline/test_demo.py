"""The demo's whole loop with a real Phoenix, on an encoder so small that training takes seconds."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from decision.conftest import tiny_encoder  # noqa: F401, a fixture

from observer_core.home import Home
from observer_pipeline.resources.build import build_warehouse

SCRIPT = """
import sys
from pathlib import Path
from observer_core.home import Home
from observer_pipeline.demo.board import Board
from observer_pipeline.demo.loop import MIN_QUESTIONS, STEPS, DemoOptions, run_demo

if __name__ == "__main__":
    board = Board(STEPS)
    with board:
        run_demo(DemoOptions(MIN_QUESTIONS, preset=sys.argv[1]), Home.from_env(), board)
    board.print("demo")
    whole = [step.name for step in board.steps if not step.name.startswith(' ')]
    assert len(whole) == STEPS, whole
    assert board.checks and not board.failed
"""


def command_of(process: psutil.Process) -> str:
    """Its command line; of one that has just ended, none."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_the_loop_keeps_its_promises_and_leaves_no_process(tmp_path: Path, tiny_encoder: Path):  # noqa: F811
    script = tmp_path / "loop.py"
    script.write_text(SCRIPT, "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OBSERVER_", "DAGSTER_"))}
    before = {process.pid for process in psutil.process_iter()}
    done = subprocess.run(
        [sys.executable, str(script), str(tiny_encoder)],
        env=environment | {"OBSERVER_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    left = [p for p in psutil.process_iter() if p.pid not in before and str(tmp_path) in command_of(p)]
    assert not left
    warehouse = build_warehouse(Home(tmp_path / "home"))
    counts = warehouse.query(
        "SELECT label_source, count(*) AS n FROM labeled_traces GROUP BY label_source ORDER BY label_source"
    ).to_pylist()
    assert [row["label_source"] for row in counts] == ["annotation", "gold"]
    assert warehouse.read("promotions").num_rows == 2
    assert warehouse.read("rollouts")["outcome"].to_pylist() == ["accepted", "accepted"]
    assert len(warehouse.parts("gate_verdicts")) == 2
