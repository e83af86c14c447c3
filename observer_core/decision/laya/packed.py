"""An encoder's layers made over for reading alone, on a CPU: the same results, sooner.

PyTorch does such things by itself only for models it compiles, which takes a C++ compiler where the model is served.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.bert.modeling_bert import BertLayer


def can_pack() -> bool:
    """Whether this build of torch has oneDNN's operators."""
    operators = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and all(
        hasattr(operators, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


def pack(module: nn.Module) -> None:
    """Replace the layers inside a module, which can then only be used, not trained or saved."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child.weight, child.bias))
        elif type(child) is BertLayer and _is_plain(child):
            setattr(module, name, PackedBertLayer(child))
        else:
            pack(child)


class PackedLinear(nn.Module):
    """A linear layer with weights in oneDNN's order: about a tenth faster than `nn.Linear`, same result.

    Args:
        weight: float32 (out, in).
        bias: float32 (out,), or none.
        gelu: the result goes through the exact GELU, while it is still in the processor's cache.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> None:
        super().__init__()
        with torch.no_grad():
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self._bias = None if bias is None else bias.detach()
        self._then = ("gelu", [], "none") if gelu else ("none", [], "")

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, *self._then)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + forward(x)`, in one pass over memory."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")


class PackedBertLayer(nn.Module):
    """A BERT layer with one product for queries, keys and values, and GELU and sums inside the products."""

    def __init__(self, layer: BertLayer) -> None:
        super().__init__()
        attention, self._heads = layer.attention.self, layer.attention.self.num_attention_heads
        parts = (attention.query, attention.key, attention.value)
        self._qkv = PackedLinear(torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts]))
        after, up, down = layer.attention.output, layer.intermediate.dense, layer.output
        self._out, self._norm = PackedLinear(after.dense.weight, after.dense.bias), after.LayerNorm
        self._up = PackedLinear(up.weight, up.bias, gelu=True)
        self._down, self._last_norm = PackedLinear(down.dense.weight, down.dense.bias), down.LayerNorm

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: object, **__: object) -> Tensor:
        """`BertLayer.forward` of an encoder: float (rows, tokens, width), and what the tokens may look at."""
        queries, keys, values = self._qkv(hidden).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        hidden = self._norm(self._out.added_to(hidden, seen.transpose(1, 2).flatten(-2)))
        return self._last_norm(self._down.added_to(hidden, self._up(hidden)))


def _is_plain(layer: BertLayer) -> bool:
    """An encoder's layer with the usual activation, as PackedBertLayer computes it."""
    activation = layer.intermediate.intermediate_act_fn
    exact_gelu = type(activation).__name__ == "GELUActivation" and activation.act is functional.gelu
    return exact_gelu and not layer.is_decoder and layer.chunk_size_feed_forward == 0
