"""Runs to serve: a tiny Laya with a long window, and one around laya-mini's encoder."""

from collections.abc import Iterator

import pytest
from decision.conftest import write_tokenizer
from systemone.harness import Served, random_laya_run, serving

from observer_core.decision.load import open_model
from observer_core.rundir import RunDirectory
from observer_serving.systemone.card import ModelCard


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads only wait for each other on networks this small."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def long_laya(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A random two-layer ModernBERT with 8,192 positions."""
    import torch
    from transformers import ModernBertConfig, ModernBertModel

    folder = tmp_path_factory.mktemp("long")
    write_tokenizer(folder)
    config = ModernBertConfig(
        vocab_size=160, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=8192, initializer_range=0.2,
        pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = ModernBertModel(config)
    return random_laya_run(folder / "laya-long", encoder, folder, max_len=8192)


@pytest.fixture(scope="session")
def laya_mini(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The preset's encoder and window with a head that has learned nothing."""
    from transformers import AutoModel

    from observer_core.decision.laya.presets import find_preset

    preset = find_preset("laya-mini")
    encoder = AutoModel.from_pretrained(preset.folder)
    return random_laya_run(
        tmp_path_factory.mktemp("mini") / "laya-mini", encoder, preset.folder, max_len=preset.max_len
    )


@pytest.fixture(scope="module")
def served(long_laya: RunDirectory) -> Iterator[Served]:
    """The long Laya behind a server without a key."""
    with serving(open_model(long_laya), ModelCard.of(long_laya)) as server:
        yield server
