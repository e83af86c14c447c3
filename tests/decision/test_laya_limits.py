"""What System One allows at most: 255 options, 10 levels, any text; an answer depends on nothing but its own row."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from asking import answers
from decision.tiny import write_modernbert

from observer_core.decision.laya.layout import Layout, collate
from observer_core.decision.laya.presets import find_preset
from observer_core.decision.laya.runtime import LayaModel
from observer_core.decision.laya.torch_backend import TorchBackend
from observer_core.decision.laya.trainer import fresh_model
from observer_core.decision.protocol import ContextOverflowError
from observer_core.questions import Question, default_questions

QUESTIONS = default_questions() | {
    "widest": Question(
        type="choice", instructions="red " * 200, criteria={f"option {i} red blue green": None for i in range(255)}
    ),
    "levels": Question(type="score", criteria=[f"level {i}" for i in range(10)]),
    "bare": Question(type="noul"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_modernbert(tmp_path_factory.mktemp("long") / "encoder")


@pytest.fixture(scope="module")
def model(folder: Path) -> LayaModel:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network, config = fresh_model(find_preset(str(folder)), max_len=2048)
    layout = Layout(folder, max_len=2048, head_max_len=config.head_max_len)
    return LayaModel(layout, TorchBackend(network), config)


def planes() -> Iterator[str]:
    """A text of each Unicode plane: its first, middle and last characters that are no surrogates."""
    for plane in range(17):
        points = [plane * 0x10000 + offset for offset in (0, 1, 0x41, 0x7FFF, 0xFFFD, 0xFFFE, 0xFFFF)]
        yield "".join(map(chr, points))


STATES = ["", " \n", "x" * 100_000, "red blue " * 11_000, *planes()]


def test_every_state_gets_a_distribution_for_every_question(model: LayaModel) -> None:
    for state in STATES:
        plan = model.plan(state, QUESTIONS)
        assert all(len(row.ids) <= 2048 for row in plan.prepared)
        (reading,) = model.run([plan])
        assert len(reading.answers["widest"].probabilities) == 255
        assert list(reading.answers["levels"].probabilities) == [str(level) for level in range(10)]
        for answer in reading.answers.values():
            assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert model.plan(STATES[3], QUESTIONS).truncated
    with pytest.raises(ContextOverflowError, match="does not fit beside its questions"):
        model.plan(STATES[3], QUESTIONS, strict=True)


def test_255_options_have_four_tokens_each_and_leave_room(folder: Path, model: LayaModel) -> None:
    (row,) = model.layout.rows("red", {"q": QUESTIONS["widest"]})
    assert len(row.markers) == 255
    assert {b - a for a, b in zip(row.markers, row.markers[1:], strict=False)} == {4}
    assert len(row.ids) == 1 + 8 + 1 + 255 * 4 + 1 + 1 + 1
    small = Layout(folder, max_len=512, head_max_len=192)
    with pytest.raises(ContextOverflowError, match="'q' has 255 options, which take 1031 of this model's 512 tokens"):
        small.rows("red", {"q": QUESTIONS["widest"]})


def test_ids_order_and_company_change_nothing(model: LayaModel) -> None:
    states = ["red", "user question blue", "é" * 50]
    together = answers(model, states, QUESTIONS)
    turned = answers(model, states[::-1], dict(reversed(QUESTIONS.items())))[::-1]
    for state, both, other in zip(states, together, turned, strict=True):
        for name, question in QUESTIONS.items():
            (alone,) = answers(model, [state], {"🜛 renamed": question})
            assert both[name] == other[name] == alone["🜛 renamed"]


def test_batched_is_one_by_one(model: LayaModel) -> None:
    """Rows of very different lengths padded together: ModernBERT's local window must not see the padding."""
    rows = [row for state in ("", "red " * 500, "blue") for row in model.layout.rows(state, QUESTIONS)]
    backend = model._backend
    (together,) = backend.logits([collate(rows, model.layout.pad_id)])
    for row, logits in zip(rows, together, strict=True):
        alone = backend.logits([collate([row], model.layout.pad_id)])[0][0]
        assert np.abs(alone - logits[: len(alone)]).max() < 1e-5
