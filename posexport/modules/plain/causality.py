"""Whether attention is causal, in a window or with ALiBi's bias: by its masks, or by its probabilities by hand.

Queries that are padding do not count: nobody reads them.

Shape letters: B batch, H heads, T tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posexport.modules.plain import soft_cap
from posexport.modules.plain.plan import Context, Order
from posexport.ops.dropped_scores import drops

#: of a slope in float32, and of its product with a distance
_ROUNDING = 1e-6
_BIAS = (
    "it adds a bias to its scores, which a cache does not have: write it as posexport.nn.Attention(hidden, heads, "
    "'alibi', causal=True), or with t5 or another bias"
)
#: why attention is not causal
LATER = "its attention sees later tokens"
#: of one that hides some of them, as those of other blocks
SOME_LATER = "its attention sees some later tokens, and of a KV cache it would see earlier ones alone"


def of_masks(masks: Sequence[Tensor], order: Order, *, is_causal: bool, axes: int, heads: int) -> Order | str:
    """What masks of ``F.scaled_dot_product_attention`` leave: causality and padding; in words where it is more."""
    kept = order.causal_TT if is_causal else torch.ones_like(order.causal_TT)
    kept_BHTT, bias_BHTT = kept[None, None], torch.zeros((), dtype=torch.float64)
    for mask in masks:
        # without an axis of heads, or of the batch
        shaped = mask.unsqueeze(1) if axes == mask.ndim == 3 else mask[(None,) * (4 - mask.ndim)]
        keeps = shaped if shaped.dtype == torch.bool else ~drops(shaped)
        if shaped.dtype != torch.bool:
            bias_BHTT = bias_BHTT + torch.where(keeps, shaped, 0).double()
        kept_BHTT = kept_BHTT & keeps
    seen = _compared(kept_BHTT, order)
    if isinstance(seen, str) or not bool((bias_BHTT != 0).any()):
        return seen
    return _biased(bias_BHTT, seen) if bias_BHTT.shape[1] == heads else _BIAS


def _biased(bias_BHTT: Tensor, seen: Order) -> Order | str:
    """``seen`` with the slopes of a bias that is linear in the distance, up to a number for every query."""
    if seen.real_BT.shape[1] < 2:
        return _BIAS
    relative_BHTT = bias_BHTT - bias_BHTT.diagonal(0, -2, -1)[..., None]
    slopes_H = -relative_BHTT[0, :, 1, 0]  # the first row has no padding
    counts_BHTT = (seen.kept_BTT & seen.real_BT[..., None])[:, None]
    off_BHTT = (relative_BHTT + slopes_H[:, None, None] * _distances(seen)) * counts_BHTT
    linear = float(off_BHTT.abs().max()) <= _ROUNDING * float(slopes_H.abs().max()) * seen.real_BT.shape[1]
    return _of_linear(slopes_H, seen) if linear else _BIAS


def _of_linear(slopes_H: Tensor, seen: Order) -> Order | str:
    return replace(seen, slopes=tuple(slopes_H.tolist())) if seen.window is None else _BIAS


def _distances(order: Order) -> Tensor:
    at = torch.arange(order.real_BT.shape[1], device=order.real_BT.device)
    return at[:, None] - at


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
        hidden = order.real_BT[:, None, None, :] & ~kept_BHTT & real_BHTT
        return (
            SOME_LATER
            if bool((hidden & ~order.causal_TT).any()) and not bool((hidden & order.causal_TT).any())
            else LATER
        )
    farthest = int((_distances(order) * (kept_BHTT & real_BHTT)).max())
    within = replace(order, window=farthest + 1)
    return within if equal(within.kept_BTT[:, None]) else "its mask is more than causality, a window and padding"


def of_probabilities(p: Tensor, s: Tensor, order: Order, tolerance: float) -> tuple[Context, Order] | str:
    """What scores ``s`` become before the softmax with causality and padding that gives ``p``, and what its mask is.

    Each is [B, H, T, T] or [B * H, T, T]. In words where they are more than scaled, capped and biased by distance.
    """
    rows, length = order.real_BT.shape
    p_BHTT, s_BHTT = (x.reshape(rows, -1, length, length).double() for x in (p, s))
    s_BHTT = s_BHTT.expand_as(p_BHTT)
    seen = _compared(p_BHTT > 0, order)
    if isinstance(seen, str):
        return seen
    kept_BHTT = seen.kept_BTT[:, None].expand_as(p_BHTT)
    # relative to each row's best key, as the softmax's sum is not known
    best = p_BHTT.argmax(-1, keepdim=True)
    counts = kept_BHTT & order.real_BT[:, None, :, None]

    def relative(x_BHTT: Tensor) -> Tensor:
        return (x_BHTT - x_BHTT.gather(-1, best)) * counts

    x_BHTT, y_BHTT = relative(s_BHTT), relative(p_BHTT.clamp(min=1e-300).log())
    if not bool((x_BHTT != 0).any()):
        return "its scores are all the same"
    most = tolerance * (1 + float(y_BHTT.abs().max()))

    def fits(other_BHTT: Tensor) -> bool:
        return float((y_BHTT - other_BHTT).abs().max()) <= most

    scale = float((x_BHTT * y_BHTT).sum() / (x_BHTT * x_BHTT).sum())
    if fits(scale * x_BHTT):
        return Context((scale,)), seen
    scale_H = (x_BHTT * y_BHTT).sum((0, 2, 3)) / (x_BHTT * x_BHTT).sum((0, 2, 3)).clamp(min=1e-300)
    if fits(scale_H[:, None, None] * x_BHTT):
        return Context(tuple(scale_H.tolist())), seen
    capped = soft_cap.fitted(s_BHTT, y_BHTT, best, most)
    if capped and fits(relative((s_BHTT * (capped[0] / capped[1])).tanh() * capped[1])):
        return Context((capped[0],), capped[1]), seen
    nearer_BHTT = ((best - torch.arange(length)) * counts).double()
    scale, slopes_H = _scale_and_slopes(x_BHTT, y_BHTT, nearer_BHTT)
    if not fits(scale * x_BHTT - slopes_H[:, None, None] * nearer_BHTT):
        return "it does more with its scores than scale, cap and mask them"
    biased = _of_linear(slopes_H, seen)
    return biased if isinstance(biased, str) else (Context((scale,)), biased)


def _scale_and_slopes(x_BHTT: Tensor, y_BHTT: Tensor, nearer_BHTT: Tensor) -> tuple[float, Tensor]:
    """The scale of all heads and the slope of each with which ``y`` is nearest to ``scale x - slope nearer``."""
    columns = torch.stack((x_BHTT, -nearer_BHTT), -1).transpose(0, 1).flatten(1, 3)
    found_H2 = torch.linalg.lstsq(columns, y_BHTT.transpose(0, 1).flatten(1)[..., None]).solution.squeeze(-1)
    return float(found_H2[:, 0].mean()), found_H2[:, 1]
