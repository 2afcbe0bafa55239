"""The linear projections of multi-head attention, and attention with the terms of a position encoding.

Shape letters: B batch, T tokens, H heads, G KV heads, D head size, C channels.

Shape letters: B batch, T tokens, S tokens attended to, H heads, G KV heads, D head size, C channels.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.nn.attention import Scoring, attend, sees_any, shared


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[..., T, C] to [..., H, T, D]."""
    parts: Tensor = x.unflatten(-1, (heads, -1)).transpose(-3, -2)  # type: ignore[no-untyped-call]
    return parts


def merge_heads(x: Tensor) -> Tensor:
    """[..., H, T, D] to [..., T, C]. Undoes `split_heads`."""
    return x.transpose(-3, -2).flatten(-2)


class ClippedLinear(nn.Linear):
    """A linear projection with outputs clipped to ``limit`` (MosaicML, MPT's released code: ``clip_qkv``)."""

    limit: float

    @staticmethod
    def of(linear: nn.Linear, limit: float) -> "ClippedLinear":
        """Returns the same projection, clipped."""
        bias = linear.bias is not None
        clipped = ClippedLinear(linear.in_features, linear.out_features, bias=bias, device=linear.weight.device)
        clipped.limit = limit
        return clipped

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(-self.limit, self.limit)


class Projections(nn.Module):
    """Q, K, V and output projections, of ``hidden`` channels to heads and back."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        head_size: int,
        *,
        kv_heads: int | None = None,
        context_hidden: int | None = None,
        bias: bool = True,
        key_bias: bool = True,
        output_bias: bool | None = None,
    ) -> None:
        """``context_hidden``: channels that keys and values are projected from; ``output_bias``: None for ``bias``."""
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        context = context_hidden or hidden
        self.query = nn.Linear(hidden, heads * head_size, bias=bias)
        self.key = nn.Linear(context, self.kv_heads * head_size, bias=bias and key_bias)
        self.value = nn.Linear(context, self.kv_heads * head_size, bias=bias)
        self.output = nn.Linear(heads * head_size, hidden, bias=bias if output_bias is None else output_bias)

    def queries(self, x_BTC: Tensor) -> Tensor:
        """Returns queries [B, H, T, D]."""
        return split_heads(self.query(x_BTC), self.heads)

    def keys(self, x_BTC: Tensor) -> Tensor:
        """Returns keys or values [B, G, T, D]."""
        return split_heads(self.key(x_BTC), self.kv_heads)

    def values(self, x_BTC: Tensor) -> Tensor:
        """Returns keys or values [B, G, T, D]."""
        return split_heads(self.value(x_BTC), self.kv_heads)

    def joined(
        self, context_BHTD: Tensor, sees_any: Tensor | None = None, otherwise_BHTD: Tensor | None = None
    ) -> Tensor:
        """Contexts of all heads through the output projection, [B, T, C].

        ``sees_any``: bool [B, 1, 1] or [B, T, 1], false for queries with all keys masked: their context is
        ``otherwise_BHTD``, which is broadcast over T, or zeros, whatever a runtime computes there (the mean of all
        values, a mean weighted by scores that show through a mask of 16 bits, or no number).
        """
        context_BTC = merge_heads(context_BHTD)
        if sees_any is not None:
            if otherwise_BHTD is None:
                otherwise = torch.zeros((), dtype=context_BTC.dtype, device=context_BTC.device)
            else:
                otherwise = merge_heads(otherwise_BHTD)
            context_BTC = torch.where(sees_any, context_BTC, otherwise)
        out: Tensor = self.output(context_BTC)
        return out


class EncodedAttention(Projections):
    """Projections with an encoding. ``scale``: what scores are multiplied by; ``scoring``: of a query and a key."""

    encoding: Encoding
    scale: float
    scoring: Scoring
    #: the context of queries with padding for all keys: zeros, or as in transformers' code the mean of all values
    of_padding: Literal["zeros", "mean"] = "zeros"

    def attended(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BGSD: Tensor,
        v_BGSD: Tensor,
        mask_B11S: Tensor | None,
        queries: Positions,
        keys: Positions,
        *,
        pairs: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Attention of ``x_BTC`` and the output projection, [B, T, C]; ``options``: further arguments of `attend`.

        ``mask_B11S``: masks padding (`additive`); ``pairs``: a further mask that is added, [B, 1 or H, T, S].
        """
        k_BHSD = shared(k_BGSD, self.heads)
        read_BHTD = split_heads(x_BTC, self.heads) if self.encoding.reads_input else q_BHTD
        context_BHTD = attend(
            q_BHTD,
            k_BGSD,
            v_BGSD,
            scale=self.scale,
            mask=mask_B11S if pairs is None else pairs if mask_B11S is None else pairs + mask_B11S,
            scores=self.encoding.scores(read_BHTD, k_BHSD, queries, keys),
            values=self.encoding.values(queries, keys),
            base=self.scoring.base(k_BHSD, queries, keys),
            **options,
        )
        if mask_B11S is None:
            return self.joined(context_BHTD)
        # not left to the softmax: a mask that is added makes all scores of a row equal in float32, but not in float16
        mean_BH1D = shared(v_BGSD, self.heads).mean(2, keepdim=True) if self.of_padding == "mean" else None
        return self.joined(context_BHTD, sees_any(mask_B11S, options.get("causal")), mean_BH1D)
