"""The `laya` package and this project give the same numbers from the same checkpoint, whichever of them wrote it."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import answers
from decision.tiny import edit_json, write_modernbert

from observer_core.decision.laya.checkpoint import copy_tokenizer, load_checkpoint, round_to_half, save_checkpoint
from observer_core.decision.laya.encoders import load_encoder
from observer_core.decision.laya.layout import option_names
from observer_core.decision.laya.presets import find_preset
from observer_core.decision.laya.runtime import LayaModel
from observer_core.decision.laya.trainer import fresh_model
from observer_core.questions import Question, default_questions

laya = pytest.importorskip("laya")

QUESTIONS = default_questions() | {
    "failure": Question(
        type="choice", instructions={"why": "tool"}, criteria={"none": None, "tool": {"red": 1}, "x": "blue"}
    ),
    "many": Question(type="choice", instructions="which", criteria={f"red {i}": None for i in range(14)}),
    "ten": Question(type="score", instructions="how", criteria=[f"blue {i}" for i in range(10)]),
    "sides": Question(type="noul", instructions="red?", criteria={"true": "green", "false": None}),
}
TURNS = [{"role": "user", "content": f"turn {i} red"} for i in range(60)]
STATES = ["", "red", "user question blue " * 150, {"a": ["é", None, 1.5], "tool": "calls"}, TURNS]
BUCKETS = {
    "temperature": [1.7, 0.8, 1.3],
    "temperature_by_options": {"choice:3-5": 2.5, "choice:11+": 0.1, "score:6-10": 9.0, "noul:2": 0.6},
}


@pytest.fixture(scope="session", params=["bert", "modernbert"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Path:
    return tiny_encoder if request.param == "bert" else write_modernbert(tmp_path_factory.mktemp("modern") / "tiny")


def saved_by_laya(encoder: Path, folder: Path) -> Path:
    """What `laya` itself writes of a network with random weights."""
    from laya.common import DecisionModel
    from laya.train import save_checkpoint
    from transformers import PreTrainedTokenizerFast

    names = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "mask", "pad", "unk")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(encoder / "tokenizer.json"), **names)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = DecisionModel(load_encoder(encoder), head_layers=2, n_act=3).eval()
        model.type_emb.weight.data.mul_(0.1)
    config = {
        "encoder": "tiny", "head_layers": 2, "act_costs": {"a": 0.1, "b": 0.2}, "max_len": 320, "head_max_len": 192,
        "amp_dtype": "bf16", "fine_tuned": True, "temperature": [1.0, 1.0, 1.0],
    }  # fmt: skip
    save_checkpoint(model, tokenizer, config, str(folder))
    return folder


def saved_by_us(encoder: Path, folder: Path) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model, config = fresh_model(find_preset(str(encoder)), max_len=320)
    round_to_half(model)
    copy_tokenizer(encoder, folder / "tokenizer")
    save_checkpoint(model, config.model_copy(update={"max_len": 320}), folder)
    return folder


def theirs(agent: Any, state: Any) -> tuple[list[list[int]], dict[str, np.ndarray]]:
    """The rows and the distributions of the package, before it rounds them to four decimals."""
    from laya.common import collate_items, temp_bucket

    internal = {name: agent._to_internal(q.model_dump(exclude_none=True)) for name, q in QUESTIONS.items()}
    items = agent._encode_state(state, list(internal), internal)
    with torch.inference_mode():
        logits, _ = agent._forward(collate_items([items], agent.tok.pad_token_id))
    out = {}
    for name, item, row in zip(internal, items, logits, strict=True):
        options, kind = len(item["markers"]), item["qtype"]
        scaled = row[:options].astype(np.float64)
        scaled /= agent.temperature_by_options.get(temp_bucket(kind, options), agent.temperature[kind])
        powers = np.exp(scaled - scaled.max())
        out[name] = powers / powers.sum()
    return [item["ids"] for item in items], out


@pytest.mark.parametrize("temperatures", [{}, BUCKETS], ids=["plain", "buckets"])
@pytest.mark.parametrize("writer", [saved_by_laya, saved_by_us])
def test_same_checkpoint_same_probabilities(
    encoder: Path, tmp_path: Path, writer: Callable[[Path, Path], Path], temperatures: dict[str, Any]
) -> None:
    folder = writer(encoder, tmp_path / "checkpoint")
    edit_json(folder / "rl_agent_config.json", **temperatures)
    ours = LayaModel.open(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the temperatures it clamps
        agent = laya.load(str(folder), device="cpu")
    assert {p.dtype for p in agent.model.parameters()} == {torch.float32}
    for state in STATES:
        rows, expected = theirs(agent, state)
        plan = ours.plan(state, QUESTIONS)
        assert [row.ids for row in plan.prepared] == rows
        (given,) = ours.run([plan])
        published = agent.predict(state, {n: q.model_dump(exclude_none=True) for n, q in QUESTIONS.items()})["answers"]
        for name, question in QUESTIONS.items():
            mine = np.array(list(given.answers[name].probabilities.values()))
            assert np.abs(mine - expected[name]).max() < 1e-5, (name, state)
            assert list(given.answers[name].probabilities) == option_names(question)
            rounded = published[name]
            shown = (
                [1 - rounded["noul"], rounded["noul"]]
                if question.type == "noul"
                else list(rounded["probabilities"].values())
            )
            assert np.abs(mine - np.array(shown)).max() < 6e-5
    assert max(len(ids) for ids in rows) == 320


def test_rotary_bases_are_read_in_the_names_of_both_transformers(tmp_path: Path) -> None:
    encoder = write_modernbert(tmp_path / "encoder")
    folder = saved_by_us(encoder, tmp_path / "checkpoint")
    config = folder / "encoder" / "config.json"
    saved = json.loads(config.read_bytes())["rope_parameters"]
    assert {kind: each["rope_theta"] for kind, each in saved.items()} == {
        "full_attention": 160000,
        "sliding_attention": 7000,
    }
    before = answers(LayaModel.open(folder), STATES, QUESTIONS)
    edit_json(config, rope_parameters=None, global_rope_theta=160000.0, local_rope_theta=7000.0)
    assert answers(LayaModel.open(folder), STATES, QUESTIONS) == before
    edit_json(config, local_rope_theta=160000.0)
    assert answers(LayaModel.open(folder), STATES, QUESTIONS) != before


def test_arithmetic_is_float32_whatever_the_configuration_says(tmp_path: Path) -> None:
    folder = saved_by_us(write_modernbert(tmp_path / "encoder"), tmp_path / "checkpoint")
    before = answers(LayaModel.open(folder), STATES, QUESTIONS)
    edit_json(folder / "encoder" / "config.json", dtype="float16", torch_dtype="float16")
    model, _ = load_checkpoint(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert answers(LayaModel.open(folder), STATES, QUESTIONS) == before


def test_turns_lose_their_oldest(tmp_path: Path, tiny_encoder: Path) -> None:
    model = LayaModel.open(saved_by_us(tiny_encoder, tmp_path / "checkpoint"))
    newest = {"role": "user", "content": "final blue"}
    plans = [model.plan([*TURNS, newest], QUESTIONS), model.plan(json.dumps([*TURNS, newest]), QUESTIONS)]
    kept = [model.layout.tokenizer.decode(plan.prepared[0].ids) for plan in plans]
    assert [plan.truncated for plan in plans] == [True, True]
    assert ["final blue" in text for text in kept] == [True, False]
