"""The Laya network in torch: an encoder, a small transformer head, and a scorer at the options' `[MASK]` positions.

Parameter names are the released checkpoints', so that their `model.safetensors` loads strictly here and ours there:
`encoder.*`, `head.layers.i.*`, `type_emb.weight`, `scorer.{0,1,3}.*`, `act_head.{0,2}.*`, and the buffer `temperature`.
"""

import torch
from torch import Tensor, nn

HEAD_WIDTH = 64
"""Hidden units per attention head of the transformer head."""

MASKED = -1e4
"""Logit of a padding option."""


class DecisionModel(nn.Module):
    """Scores the options of typed questions.

    Args:
        encoder: a Hugging Face encoder (BERT, ModernBERT); called with `input_ids` and `attention_mask`.
        head_layers: pre-norm transformer layers between encoder and scorer.
        actions: outputs of the action head.
        dropout: of the head, while training.
    """

    def __init__(self, encoder: nn.Module, *, head_layers: int, actions: int, dropout: float = 0.1) -> None:
        super().__init__()
        width = int(encoder.config.hidden_size)  # pyright: ignore
        self.encoder = encoder
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // HEAD_WIDTH), 4 * width, dropout, batch_first=True, norm_first=True
        )
        self.head = nn.TransformerEncoder(layer, head_layers, enable_nested_tensor=False) if head_layers else None
        self.type_emb = nn.Embedding(3, width)
        self.scorer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        # Trained nowhere in this project; it is here so that the checkpoint is complete.
        self.act_head = nn.Sequential(nn.Linear(width + 4, 256), nn.GELU(), nn.Linear(256, actions))
        self.register_buffer("temperature", torch.ones(3))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, marker_pos: Tensor, marker_mask: Tensor, qtype: Tensor
    ) -> Tensor:
        """Logits of the options, float32 (rows, options), before the temperature; padding options get −1e4.

        Args:
            input_ids: int64 (rows, tokens).
            attention_mask: int64 (rows, tokens), 0 for padding.
            marker_pos: int64 (rows, options), positions of the `[MASK]`s.
            marker_mask: bool (rows, options), false for padding.
            qtype: int64 (rows,), choice 0, score 1, noul 2.
        """
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        hidden = hidden + self.type_emb(qtype)[:, None, :]
        if self.head is not None:
            padding = attention_mask == 0
            for layer in self.head.layers:
                hidden = layer(hidden, src_key_padding_mask=padding)
        at = marker_pos[:, :, None].expand(-1, -1, hidden.size(-1))
        logits = self.scorer(torch.gather(hidden, 1, at)).squeeze(-1).float()
        return logits.masked_fill(~marker_mask, MASKED)
