"""The linear projections of multi-head attention, and tensors split into heads.

Shape letters: B batch, T tokens, H heads, G KV heads, D head size, C channels.
"""

import torch
from torch import Tensor, nn


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
