"""Tiny random encoders beside the BERT of `conftest.tiny_encoder`."""

import json
from pathlib import Path
from typing import Any

from decision.conftest import write_tokenizer

MODERNBERT = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "local_attention": 16,
    "global_attn_every_n_layers": 2,
    "initializer_range": 0.2,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 7000.0,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}


def write_modernbert(folder: Path, **changes: Any) -> Path:
    """An encoder folder: ModernBERT, 4 layers, half of them with a window of 16 tokens, 4,096 positions."""
    import torch
    from transformers import AutoConfig, AutoModel

    folder.mkdir(parents=True)
    write_tokenizer(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(AutoConfig.for_model("modernbert", **(MODERNBERT | changes))).save_pretrained(folder)
    return folder


def edit_json(file: Path, **changes: Any) -> None:
    """Set fields of a JSON object, those that are `None` removed."""
    body = json.loads(file.read_bytes()) | changes
    file.write_text(json.dumps({name: value for name, value in body.items() if value is not None}))
