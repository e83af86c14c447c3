"""Random small decoders with a byte tokenizer: what a Kev checkpoint needs, made in a second and without a network."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from observer_core.decision.kev.adapter import fresh_adapter
from observer_core.decision.kev.base import folder_base
from observer_core.decision.kev.checkpoint import copy_tokenizer, load_backbone, save_checkpoint
from observer_core.decision.kev.config import QWEN_DELIMITERS, KevConfig
from observer_core.decision.kev.model import KevNetwork
from observer_core.decision.kev.presets import choose_delimiters
from observer_core.decision.kev.smollm2 import DELIMITERS

KINDS = ("llama", "qwen3", "qwen3_5")
"""SmolLM2's kind, Kev's attention-only one, and Kev's hybrid with three recurrent layers of four."""


def write_tokenizer(folder: Path, names: tuple[str, ...]) -> None:
    """Every byte is a token; the names come after them. As in Qwen's, not all of them are called special."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=i % 2 == 0, normalized=False) for i, name in enumerate(names)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def write_base(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """A base's folder as transformers saves it."""
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
        "num_hidden_layers": 4 if kind == "qwen3_5" else 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 131072,
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
            model = LlamaForCausalLM(LlamaConfig(**shape))
        elif kind == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**shape))
        else:
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape, **linear))
        model.save_pretrained(folder)
    return folder


def write_checkpoint(base: Path, checkpoint: Path, *, rank: int = 4, **fields: object) -> KevNetwork:
    """A checkpoint whose LoRA does something, and its network with LoRA not merged."""
    made = folder_base(base)
    config = KevConfig(
        base=made.name,
        base_revision=made.revision,
        lora=rank,
        head_dim=16,
        delimiters=choose_delimiters(base),
        **fields,  # type: ignore[arg-type]
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        network = KevNetwork(fresh_adapter(load_backbone(base), rank=rank), head_dim=16)
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    copy_tokenizer(base, checkpoint)
    save_checkpoint(network, config, made, checkpoint)
    return network.eval()
