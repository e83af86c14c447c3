"""A random two-layer BERT with a letter tokenizer, traces whose wrongness is easy to see, and one run trained on them."""

import json
import random
import string
from pathlib import Path

import pytest

from observer_core.decision.train import TrainOptions, train_run
from observer_core.rundir import RunDirectory
from observer_core.traces.trace import ToolCall, Trace

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "question",
    "answer",
    "final",
    "user",
    "tool",
    "calls",
    "evidence",
    "red",
    "blue",
    "green",
    "wrong",
    "partially",
]


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    letters = string.ascii_lowercase + string.digits
    pieces = [*SPECIAL, *WORDS, *letters, *(f"##{c}" for c in letters), *string.punctuation]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {role: f"[{role.upper()}]" for role in ("cls", "sep", "mask", "pad", "unk")}
    config = {"tokenizer_class": "BertTokenizer"} | {f"{role}_token": name for role, name in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads only wait for each other on networks this small."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder folder: 2 layers, hidden 32, 512 positions, random weights."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    folder.mkdir()
    write_tokenizer(folder)
    config = BertConfig(
        vocab_size=160,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder


def easy_traces(n: int, *, seed: int = 0) -> list[Trace]:
    """Traces whose answer says `red` when wrong and `blue` when correct, each to a user question of its own."""
    rng = random.Random(seed)
    traces = []
    for i in range(n):
        wrong = rng.random() < 0.5
        traces.append(
            Trace(
                trace_id=f"{i:032x}",
                question=f"question {i}",
                tool_calls=[ToolCall("search", {"q": rng.choice("abc")})],
                evidence=["green " * rng.randint(1, 4)],
                final_answer=" ".join(["red" if wrong else "blue"] * 15),
                label="wrong" if wrong else "correct",
                failure_type=rng.choice([None, "contradiction"]),
                model="agent",
            )
        )
    return traces


def quick(encoder: Path, **changes: object) -> TrainOptions:
    """Options under which the tiny encoder learns the easy traces in seconds."""
    options = {
        "family": "laya",
        "preset": str(encoder),
        "epochs": 1.5,
        "head_epochs": 0.5,
        "learning_rate": 2e-3,
        "head_learning_rate": 2e-3,
        "max_tokens": 256,
        "tokens_per_batch": 1024,
        "onnx": False,
    }
    return TrainOptions(**(options | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def laya_run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A trained run with an ONNX graph and its int8 variant's verdict."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    return train_run(easy_traces(240), out, quick(tiny_encoder, onnx=True))


@pytest.fixture(scope="session")
def baseline_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("runs") / "base"
    return train_run(easy_traces(240), out, TrainOptions(family="baseline"))
