"""``F.scaled_dot_product_attention`` as an attention node; what the node cannot compute, as its formula.

PyTorch's exporter never translates it: from opset 23 on it would write an Attention with a mask that may have a query
axis of 1, which ONNX Runtime's kernel refuses.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posexport.encodings.positions import Positions
from posexport.modules.recognise.masks import added
from posexport.nn.attention import attend
from posexport.nn.projections import merge_heads, split_heads

#: axes before tokens and channels: of one sequence, of a batch without heads, of a batch
_LEADING = (0, 1, 2)


def refusal(q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor], dropout: float, scale: object) -> str | None:
    """Why a call does not become a node; None where it does."""
    if dropout:
        return "it drops some of its probabilities at random"
    if q.ndim - 2 not in _LEADING or k.ndim != q.ndim or v.ndim != q.ndim:
        return f"its queries have {q.ndim} axes, its keys {k.ndim} and its values {v.ndim}"
    if any(mask.ndim > max(q.ndim, 2) for mask in masks):
        return "its mask has more axes than its queries"
    sizes = [q.shape[-1], *k.shape[1:-2][:1]] if q.ndim == 4 else [q.shape[-1]]
    if not all(isinstance(size, int) for size in sizes) or not isinstance(scale, float | int | None):
        return "its heads, their size or its scale are not known before it runs"
    same = k.shape[:-1] == v.shape[:-1] and (q.ndim < 3 or q.shape[0] == k.shape[0])
    return None if same else "its queries, keys and values are broadcast"


def node(q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor], *, is_causal: bool, scale: float | None) -> Tensor:
    """An attention node, for calls that `refusal` accepts."""
    axes = q.ndim
    if axes == 3:  # [B, T, D]: one head
        masks = [mask.unsqueeze(-3) if mask.ndim == 3 else mask for mask in masks]
    q, k, v = (of_four_axes(x) for x in (q, k, v))
    mask = added(masks, q, k.shape[2])
    context = attend(
        q,
        k,
        v,
        scale=1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
        mask=None if mask is None else mask.mask,
        causal=(Positions.counted(q.shape[2]), Positions.counted(k.shape[2])) if is_causal else None,
    )
    if mask is not None:
        context = of_seeing(context, mask.sees_any)
    return context if axes == 4 else context.squeeze(1) if axes == 3 else context[0, 0]


def of_four_axes(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x.unsqueeze(1) if x.ndim == 3 else x[None, None]


def of_seeing(context_BHTD: Tensor, sees_any: Tensor) -> Tensor:
    """The context with zeros for queries that see no key.

    Computed on packed heads: the module packs them next, and the exporter's optimiser removes the split and the pack.
    """
    zero = torch.zeros((), dtype=context_BHTD.dtype, device=context_BHTD.device)
    _, heads, _, size = context_BHTD.shape
    seen_BTC = sees_any.transpose(1, 2)
    if seen_BTC.shape[-1] != 1:
        seen_BTC = seen_BTC.repeat_interleave(size, -1)
    return split_heads(torch.where(seen_BTC, merge_heads(context_BHTD), zero), heads)


def formula(
    q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor], *, is_causal: bool, scale: float | None, grouped: bool
) -> Tensor:
    """Attention as products and a softmax, for any number of axes."""
    if grouped:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        later = torch.arange(k.shape[-2], device=q.device) > torch.arange(q.shape[-2], device=q.device)[:, None]
        masks = [*masks, ~later]
    for mask in masks:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    seen = scores.amax(-1, keepdim=True) > -torch.inf
    return torch.where(seen, scores, 0.0).softmax(-1).mul(seen) @ v
