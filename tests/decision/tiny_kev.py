"""Random two-layer decoders with a byte tokenizer: what a Kev checkpoint needs, in a second and without a network."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from observer_core.decision.kev.config import QWEN_DELIMITERS
from observer_core.decision.kev.smollm2 import DELIMITERS

KINDS = ("llama", "qwen3", "qwen3_5")


def write_tokenizer(folder: Path, names: tuple[str, ...]) -> None:
    """Every byte is a token; the names come after them. As in Qwen, not all of them are called special."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=i % 2 == 0, normalized=False) for i, name in enumerate(names)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def write_base(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """A base folder as transformers saves it: Llama, Qwen3, or Qwen3.5 with three recurrent layers of four."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    folder.mkdir(parents=True)
    write_tokenizer(folder, DELIMITERS if kind == "llama" else QWEN_DELIMITERS)
    shape = {
        "vocab_size": 264,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16384,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "llama":
            model = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=2))
        elif kind == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**shape, num_hidden_layers=2, head_dim=8))
        else:
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape, **linear, num_hidden_layers=4, head_dim=8))
        model.save_pretrained(folder)
    return folder
