"""Which of a night's models may become champion."""

import json
import shutil
from pathlib import Path

from serving.test_switch import make_run

from observer_core.decision.load import load_scorer
from observer_core.rundir import open_run
from observer_core.traces.trace import ToolCall, Trace
from observer_pipeline.comparison import choose_challenger


def test_a_model_that_says_the_same_of_all_goes_behind_one_that_ranks(tmp_path: Path):
    ranking = make_run(tmp_path / "ranking", seed=0)
    shutil.copytree(ranking.path, tmp_path / "flat")
    manifest = tmp_path / "flat" / "manifest.json"
    stored = json.loads(manifest.read_text())
    stored["calibration"] = {"method": "platt", "parameters": {"slope": 0.0, "bias": 0.0}}
    manifest.write_text(json.dumps(stored))
    flat = open_run(tmp_path / "flat")
    # Labeled the other way round than the runs' training data, so that the one that ranks has the higher Brier score.
    validation = [
        Trace(
            question="Where is place 1?",
            final_answer="I could not find it.",
            tool_calls=[ToolCall("search", {"q": 1}, "error")],
            label="correct",
        ),
        Trace(
            question="Where is place 2?",
            final_answer="Place 2 is in the north.",
            tool_calls=[ToolCall("search", {"q": 2}, "ok")],
            evidence=["Place 2 is in the north."],
            label="wrong",
        ),
    ]
    scores = [score.p_wrong for score in load_scorer(ranking).score(validation)]
    assert scores[0] > 0.5 > scores[1]
    assert choose_challenger({"laya": flat, "stacked": ranking}, validation) is ranking
    assert choose_challenger({"laya": flat}, validation) is flat
