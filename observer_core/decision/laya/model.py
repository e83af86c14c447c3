"""The Laya network in torch: an encoder, a small transformer head, and a scorer at the options' `[MASK]` positions.

Parameter names are the released checkpoints', so that their `model.safetensors` loads strictly here and ours there:
`encoder.*`, `head.layers.i.*`, `type_emb.weight`, `scorer.{0,1,3}.*`, `act_head.{0,2}.*`, and the buffer `temperature`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        nn.init.zeros_(self.type_emb.weight)  # at the default scale it would drown what the encoder says
        self.scorer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        # Trained nowhere in this project; it is here so that the checkpoint is complete.
        self.act_head = nn.Sequential(nn.Linear(width + 4, 256), nn.GELU(), nn.Linear(256, actions))
        self.register_buffer("temperature", torch.ones(3))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        marker_pos: Tensor,
        marker_mask: Tensor,
        qtype: Tensor,
    ) -> Tensor:
        """Logits of the options, float32 (rows, options), before the temperature; padding options get −1e4.

        Args:
            input_ids: int64 (rows, tokens).
            attention_mask: int64 (rows, tokens), 0 for padding; `None` when there is none.
            marker_pos: int64 (rows, options), positions of the `[MASK]`s.
            marker_mask: bool (rows, options), false for padding.
            qtype: int64 (rows,), choice 0, score 1, noul 2.
        """
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.decide(hidden, attention_mask, marker_pos, marker_mask, qtype)

    def decide(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None,
        marker_pos: Tensor,
        marker_mask: Tensor,
        qtype: Tensor,
    ) -> Tensor:
        """What `forward` does after the encoder. `hidden` is float (rows, tokens, width)."""
        hidden = hidden + self.type_emb(qtype)[:, None, :]
        at = marker_pos[:, :, None].expand(-1, -1, hidden.size(-1))
        if self.head is None:
            markers = torch.gather(hidden, 1, at)
        else:
            padding = None if attention_mask is None else attention_mask == 0
            for layer in self.head.layers[:-1]:
                hidden = layer(hidden, src_key_padding_mask=padding)
            markers = _at_markers(self.head.layers[-1], hidden, padding, at)  # pyright: ignore[reportArgumentType]
        return self.scorer(markers).squeeze(-1).float().masked_fill(~marker_mask, MASKED)


def _at_markers(layer: nn.TransformerEncoderLayer, hidden: Tensor, padding: Tensor | None, at: Tensor) -> Tensor:
    """The output of a pre-norm layer at the positions `at` alone: nothing else of the last layer is read.

    Queries and feed-forward of a few markers instead of all tokens make the layer about ten times cheaper; the result
    is the same.
    """
    normed = layer.norm1(hidden)
    attended = _attend(layer.self_attn, torch.gather(normed, 1, at), normed, padding)
    markers = torch.gather(hidden, 1, at) + layer.dropout1(attended)
    return markers + layer.dropout2(layer.linear2(layer.dropout(layer.activation(layer.linear1(layer.norm2(markers))))))


def _attend(attention: nn.MultiheadAttention, markers: Tensor, tokens: Tensor, padding: Tensor | None) -> Tensor:
    """What `attention` gives for few queries, without making keys and values of every token.

    A key is a linear map of its token, so q·(Wk t + bk) = (Wkᵀ q)·t + a constant the softmax does not see; likewise
    the mean of values is Wv times the mean of tokens, plus bv. The maps then apply to markers instead of tokens.

    Args:
        markers: float (rows, markers, width), the queries before their projection.
        tokens: float (rows, tokens, width), what they look at.
        padding: bool (rows, tokens), true where nothing may be looked at; `None` for no padding.
    """
    heads, size = attention.num_heads, attention.head_dim
    width = heads * size
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    _, keys, values = weight.view(3, heads, size, width)
    queries = functional.linear(markers, weight[:width], bias[:width]).unflatten(-1, (heads, size)) * size**-0.5
    scores = torch.einsum("rmhw,rtw->rmht", torch.einsum("rmhd,hdw->rmhw", queries, keys), tokens)
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None, :], float("-inf"))
    weights = functional.dropout(torch.softmax(scores, dim=-1), attention.dropout, attention.training)
    means = torch.einsum("rmht,rtw->rmhw", weights, tokens)
    seen = torch.einsum("rmhw,hdw->rmhd", means, values).flatten(-2) + bias[2 * width :]
    return attention.out_proj(seen)
