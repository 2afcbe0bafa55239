"""``F.multi_head_attention_forward``, which `nn.MultiheadAttention` calls, with batch-first projections.

PyTorch's implementation splits heads of [T, B, C] into [B * H, T, D], and joins both masks into one per head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.nn.projections import merge_heads, split_heads


def refusal(call: dict[str, Any]) -> str | None:
    """Why a call does not become a node; None where it does."""
    if call["bias_k"] is not None or call["add_zero_attn"] or call.get("static_k") is not None:
        return "nn.MultiheadAttention adds a key (add_bias_kv, add_zero_attn)"
    attn_mask = call["attn_mask"]
    return "its mask has a row for every head" if attn_mask is not None and attn_mask.ndim == 3 else None


class Projected:
    """The queries, keys and values of a call, its masks (`posexport.modules.recognise.masks`) and what packs heads."""

    def __init__(self, call: dict[str, Any]) -> None:
        self.call = call
        self.batched = call["query"].ndim == 3
        self.heads = call["num_heads"]
        self.q, self.k, self.v = (self._split(x) for x in self._projections())
        padding, attn_mask = call["key_padding_mask"], call["attn_mask"]
        # as in PyTorch, the hint replaces the mask where nothing else is masked
        self.is_causal = bool(call["is_causal"]) and padding is None and not call["need_weights"]
        self.masks = [] if attn_mask is None or self.is_causal else [_as_sdpa_mask(attn_mask)]
        if padding is not None:
            self.masks.append(_as_sdpa_mask(padding if self.batched else padding[None])[:, None, None])

    def _batch_first(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1) if self.batched else x[None]

    def _split(self, x_BTC: Tensor) -> Tensor:
        return split_heads(x_BTC, self.heads)

    def _projections(self) -> tuple[Tensor, ...]:
        """Queries, keys and values, [B, T, C] each."""
        call = self.call
        query, key, value = call["query"], call["key"], call["value"]
        weight, bias = call["in_proj_weight"], call["in_proj_bias"]
        if not call["use_separate_proj_weight"] and query is key and key is value:
            return F.linear(self._batch_first(query), weight, bias).chunk(3, -1)
        separate = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        weights = [call[name] for name in separate] if call["use_separate_proj_weight"] else weight.chunk(3)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        inputs = (query, key, value)
        return tuple(F.linear(self._batch_first(x), w, b) for x, w, b in zip(inputs, weights, biases, strict=True))

    def output(self, context_BHTD: Tensor) -> Tensor:
        """[T, B, C], as the function returns it."""
        out = F.linear(merge_heads(context_BHTD), self.call["out_proj_weight"], self.call["out_proj_bias"])
        return out.transpose(0, 1) if self.batched else out[0]


def _as_sdpa_mask(mask: Tensor) -> Tensor:
    """A mask as ``F.scaled_dot_product_attention`` takes it: where it is bool, True keeps."""
    return ~mask if mask.dtype == torch.bool else mask
