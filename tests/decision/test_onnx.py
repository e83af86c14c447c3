"""Exported graphs: they answer as torch does or are not served, in float32 and int8, for both encoders."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from asking import answers
from decision.tiny import write_modernbert

from observer_core.decision import onnx as exporting
from observer_core.decision.laya.checkpoint import copy_tokenizer, round_to_half, save_checkpoint
from observer_core.decision.laya.layout import Layout
from observer_core.decision.laya.presets import find_preset
from observer_core.decision.laya.run import export_laya
from observer_core.decision.laya.runtime import LayaModel
from observer_core.decision.laya.trainer import fresh_model
from observer_core.decision.onnx import GRAPH, INT8_GRAPH, INT8_TOLERANCE, WEIGHTS, Exported, export_checked
from observer_core.questions import Question, default_questions

QUESTIONS = default_questions() | {
    "why": Question(type="choice", instructions="x", criteria={f"red {i}": None for i in range(7)})
}
STATES = ["red", "blue green " * 60, "user question red", "tool " * 30]
OTHERS = ["x", "final answer " * 200, "é", ""]


def numbers(model: LayaModel, states: list[str]) -> np.ndarray:
    given = answers(model, states, QUESTIONS)
    return np.array([p for of_state in given for a in of_state.values() for p in a.probabilities.values()])


@pytest.fixture(scope="module", params=["bert", "modernbert"])
def exported(
    request: pytest.FixtureRequest, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Exported]:
    """A checkpoint folder with its graphs beside it, and what the manifest would say."""
    folder = tmp_path_factory.mktemp("exported")
    encoder = tiny_encoder if request.param == "bert" else write_modernbert(folder / "encoder")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, config = fresh_model(find_preset(str(encoder)), max_len=320)
    model.eval()
    round_to_half(model)
    copy_tokenizer(encoder, folder / "checkpoint" / "tokenizer")
    save_checkpoint(model, config, folder / "checkpoint")
    layout = Layout(encoder, max_len=320, head_max_len=192)
    return folder, export_laya(model, config, layout, STATES, QUESTIONS, folder / "onnx", int8=True)


def test_graphs_answer_as_torch_at_other_shapes(exported: tuple[Path, Exported]) -> None:
    folder, made = exported
    assert made.served == INT8_GRAPH, made
    assert made.max_difference is not None
    assert made.max_difference < 1e-5
    reference = numbers(LayaModel.open(folder / "checkpoint", max_tokens=320), OTHERS)
    for name, allowed in ((GRAPH, 1e-5), (INT8_GRAPH, INT8_TOLERANCE)):
        given = numbers(LayaModel.open(folder / "checkpoint", onnx=folder / "onnx" / name, max_tokens=320), OTHERS)
        assert np.abs(given - reference).max() < allowed, name
    assert not np.array_equal(given, reference)  # the quantised graph does compute in int8


def test_the_int8_graph_needs_no_torch(exported: tuple[Path, Exported]) -> None:
    folder, _ = exported
    program = (
        "import sys; from pathlib import Path\n"
        "from observer_core.decision.laya.runtime import LayaModel\n"
        "from observer_core.decision.protocol import read\n"
        "from observer_core.questions import default_questions\n"
        f"model = LayaModel.open(Path(sys.argv[1], 'checkpoint'), onnx=Path(sys.argv[1], 'onnx', '{INT8_GRAPH}'))\n"
        "(reading,) = read(model, ['red'], default_questions())\n"
        "print(reading.answers['answer_wrong'].noul, [m for m in ('torch', 'transformers', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    probability, modules = done.stdout.split(" ", 1)
    assert 0 < float(probability) < 1
    assert json.loads(modules) == []


def test_what_cannot_be_served_is_said_and_left_out(
    exported: tuple[Path, Exported], tmp_path: Path, monkeypatch
) -> None:
    graph = exported[0] / "onnx" / GRAPH
    given = np.array([0.5])

    def export(file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        for name in (GRAPH, WEIGHTS):
            file.with_name(name).write_bytes(graph.with_name(name).read_bytes())

    def fail(file: Path) -> None:
        raise RuntimeError("no such\noperator")

    def off(by: float, only: str | None = None):
        return lambda file: given + by * (only is None or file.name == only)

    def served(export, answers, *, int8: bool = True) -> Exported:
        made = export_checked(export, answers, given, tmp_path / "onnx", int8=int8)
        left = {file.name for file in (tmp_path / "onnx").glob("*")} if (tmp_path / "onnx").is_dir() else set()
        assert made.served in left or (made.served is None and not left)
        assert INT8_GRAPH not in left or made.served == INT8_GRAPH
        return made

    assert served(fail, off(0)).note == "export failed: RuntimeError: no such operator"
    assert served(export, fail).note == "export failed: RuntimeError: no such operator"
    assert served(export, off(0.001)).note == "the graph's probabilities differ from torch's by 0.001"
    assert (
        served(export, off(0.5, INT8_GRAPH)).note
        == "the int8 graph's probabilities differ by 0.5, more than 0.02; fp32 is served"
    )
    assert served(export, off(float("nan"))).served is None
    assert served(export, off(0.01, INT8_GRAPH)).int8_scales == "token"
    monkeypatch.setattr(exporting, "QUANTISERS", {"token": lambda *_: fail(graph)})
    assert served(export, off(0)).note == "int8 failed: RuntimeError: no such operator; fp32 is served"
