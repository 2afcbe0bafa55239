"""Whether attention is causal, in a window or not: by its masks, or by its probabilities where it is written by hand.

Queries that are padding do not count: nobody reads them.

Shape letters: B batch, H heads, T tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posexport.sources.plain.plan import Order

#: what a mask adds at most where it drops a key
_DROPS = -1000.0
_BIAS = (
    "it adds a bias to its scores, which a cache does not have: write it as posexport.nn.Attention(hidden, heads, "
    "'alibi', causal=True), or with t5 or another bias"
)
#: why attention is not causal
LATER = "its attention sees later tokens"


def of_masks(masks: Sequence[Tensor], order: Order, *, is_causal: bool, axes: int) -> Order | str:
    """What masks of ``F.scaled_dot_product_attention`` leave: causality and padding; in words where it is more."""
    kept = order.causal_TT if is_causal else torch.ones_like(order.causal_TT)
    kept_BHTT = kept[None, None]
    for mask in masks:
        # without an axis of heads, or of the batch
        shaped = mask.unsqueeze(1) if axes == mask.ndim == 3 else mask[(None,) * (4 - mask.ndim)]
        keeps = shaped if shaped.dtype == torch.bool else shaped > _DROPS
        if shaped.dtype != torch.bool and bool((shaped[keeps] != 0).any()):
            return _BIAS
        kept_BHTT = kept_BHTT & keeps
    return _compared(kept_BHTT, order)


def _compared(kept_BHTT: Tensor, order: Order) -> Order | str:
    real_BHTT = order.real_BT[:, None, :, None]

    def equal(other: Tensor) -> bool:
        return not bool(((kept_BHTT != other) & real_BHTT).any())

    if equal(order.kept_BTT[:, None]):
        return order
    if equal(order.causal_TT):
        return "its attention does not leave out what attention_mask pads"
    later = kept_BHTT & ~order.causal_TT & real_BHTT
    if bool(later.any()):
        return LATER
    at = torch.arange(order.real_BT.shape[1], device=kept_BHTT.device)
    farthest = int(((at[:, None] - at) * (kept_BHTT & real_BHTT)).max())
    within = replace(order, window=farthest + 1)
    return within if equal(within.kept_BTT[:, None]) else "its mask is more than causality, a window and padding"


def of_probabilities(p: Tensor, s: Tensor, order: Order, tolerance: float) -> tuple[float, Order] | str:
    """The scale of scores ``s`` whose softmax with causality and padding ``p`` is, and what its mask leaves.

    Both are [B, H, T, T] or [B * H, T, T]. In words where there is no such scale.
    """
    rows, length = order.real_BT.shape
    p_BHTT, s_BHTT = (x.expand_as(p).reshape(rows, -1, length, length).double() for x in (p, s))
    seen = _compared(p_BHTT > 0, order)
    if isinstance(seen, str):
        return seen
    kept_BHTT = seen.kept_BTT[:, None].expand_as(p_BHTT)
    # relative to each row's best key, as the softmax's sum is not known
    best = p_BHTT.argmax(-1, keepdim=True)
    counts = kept_BHTT & order.real_BT[:, None, :, None]
    x, y = ((each - each.gather(-1, best))[counts] for each in (s_BHTT, p_BHTT.clamp(min=1e-300).log()))
    if not bool((x != 0).any()):
        return "its scores are all the same"
    scale = float((x * y).sum() / (x * x).sum())
    if float((y - scale * x).abs().max()) > tolerance * (1 + float(y.abs().max())):
        return "it does more with its scores than scale and mask them"
    return scale, seen
