"""Runs to serve: a tiny Laya with a long window, and one around laya-mini's encoder."""

from collections.abc import Iterator

import pytest
from decision.tiny import write_modernbert
from systemone.harness import Served, random_kev_run, random_laya_run, serving

from observer_core.decision.kev.config import QWEN_DELIMITERS
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
    from transformers import AutoModel

    folder = tmp_path_factory.mktemp("long")
    base = write_modernbert(folder / "base", num_hidden_layers=2, hidden_size=32, max_position_embeddings=8192)
    return random_laya_run(folder / "laya-long", AutoModel.from_pretrained(base), base, max_len=8192)


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


@pytest.fixture(scope="session")
def kev(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A random Kev on a two-layer Llama whose tokenizer knows numbered options, so that 255 of them fit."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    base = tmp_path_factory.mktemp("kev") / "base"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=letters, special_tokens=list(QWEN_DELIMITERS), show_progress=False
    )
    tokenizer.train_from_iterator((f"Queue {i:03d}: Tickets routed to queue {i}" for i in range(300)), trainer)
    config = LlamaConfig(
        vocab_size=700, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=2, max_position_embeddings=16384, initializer_range=0.2, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(base)
    tokenizer.save(str(base / "tokenizer.json"))
    return random_kev_run(base.parent / "kev-tiny", base)
