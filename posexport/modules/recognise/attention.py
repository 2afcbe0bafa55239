"""PyTorch's attention functions as attention nodes; what the node cannot compute, as its formula.

A mask is bool (True keeps) or is added to the scores, and is broadcast to [B, H, T, S]. In place of -inf,
`dropped_score` is added, so that no score is infinite; a query without any key reads zeros, as in PyTorch.

PyTorch's exporter never translates it: from opset 23 on it would write an Attention with a mask that may have a query
axis of 1, which ONNX Runtime's kernel refuses.

PyTorch's implementation splits heads of [T, B, C] into [B * H, T, D], and joins both masks into one per head.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.encodings.positions import Positions
from posexport.nn.attention import attend, dropped_score
from posexport.nn.projections import merge_heads, split_heads


@dataclass(frozen=True)
class Added:
    """A mask to add.

    Attributes:
        mask: [B, 1, 1, S] or [B or 1, H or 1, T, S].
        sees_any: bool [B or 1, H or 1, T or 1].
    """

    mask: Tensor
    sees_any: Tensor


def added(masks: Sequence[Tensor], q_BHTD: Tensor, keys: int) -> Added | None:
    """The sum of all ``masks``; None where there are none."""
    if not masks:
        return None
    shaped = [_of_four_axes(mask, keys) for mask in masks]
    seen = reduce(torch.logical_and, [_seen(mask) for mask in shaped])
    mask = reduce(torch.add, [_term(mask, q_BHTD) for mask in shaped])
    batch, heads, queries, _ = mask.shape
    if queries == 1 and heads == 1:
        if batch == 1:
            mask = mask.expand(q_BHTD.shape[0], 1, 1, keys)
    elif queries == 1:
        mask = mask.expand(batch, heads, q_BHTD.shape[2], keys)
    return Added(mask, seen.any(-1))


def _of_four_axes(mask: Tensor, keys: int) -> Tensor:
    """[B or 1, H or 1, T or 1, S]: an axis that the module expanded is reduced to size 1."""
    mask = mask[(None,) * (4 - mask.ndim)]
    for axis, stride in enumerate(mask.stride()):
        if stride == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask.expand(*mask.shape[:3], keys)


def _seen(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > -torch.inf


def _term(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype).clamp(min=dropped_score(like.dtype))
    return torch.where(mask, torch.zeros((), dtype=like.dtype, device=like.device), dropped_score(like.dtype))


def refusal(q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor], dropout: float, scale: object) -> str | None:
    """Why a call does not become a node; None where it does."""
    if dropout:
        return "it drops some of its probabilities at random"
    if q.ndim < 2 or k.ndim != q.ndim or v.ndim != q.ndim:
        return f"its queries have {q.ndim} axes, its keys {k.ndim} and its values {v.ndim}"
    if any(mask.ndim > max(q.ndim, 2) for mask in masks):
        return "its mask has more axes than its queries"
    sizes = [q.shape[-1], *k.shape[-3:-2]] if q.ndim >= 4 else [q.shape[-1]]
    if not all(isinstance(size, int) for size in sizes) or not isinstance(scale, float | int | None):
        return "its heads, their size or its scale are not known before it runs"
    rows = slice(0, -3) if q.ndim > 4 else slice(0, 1)
    same = k.shape[:-1] == v.shape[:-1] and (q.ndim < 3 or q.shape[rows] == k.shape[rows])
    return None if same else "its queries, keys and values are broadcast"


def node(q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor], *, is_causal: bool, scale: float | None) -> Tensor:
    """An attention node, for calls that `refusal` accepts."""
    axes, lead = q.ndim, q.shape[:-2]
    if axes > 4:
        (q, k, v), masks = (_one_batch(x) for x in (q, k, v)), [_one_batch(mask, q.shape[:-3]) for mask in masks]
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
    if axes > 4:
        return context.reshape(*lead, *context.shape[-2:])
    return context if axes == 4 else context.squeeze(1) if axes == 3 else context[0, 0]


def _one_batch(x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """[B, .., H, T, D] as [B .., H, T, D]; a mask that differs by row is expanded to ``rows``, [B, ..]."""
    if rows is not None and (x.ndim <= 3 or all(size == 1 for size in x.shape[:-3])):
        return x.reshape(x.shape[-3:]) if x.ndim > 3 else x
    if rows is not None:
        x = x.expand(*rows, *x.shape[-3:])
    return x.flatten(0, -4)


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


def multi_head_refusal(call: dict[str, Any]) -> str | None:
    """Why a call does not become a node; None where it does."""
    if call["bias_k"] is not None or call["add_zero_attn"] or call.get("static_k") is not None:
        return "nn.MultiheadAttention adds a key (add_bias_kv, add_zero_attn)"
    attn_mask = call["attn_mask"]
    return "its mask has a row for every head" if attn_mask is not None and attn_mask.ndim == 3 else None


class Projected:
    """The queries, keys, values and masks of a call, and what packs heads."""

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


def of_one_dtype(operands: tuple[object, ...]) -> tuple[object, ...]:
    """The operands of an einsum in the dtype that PyTorch computes in: Einsum of ONNX takes one dtype."""
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if len(tensors) < len(operands) or len({x.dtype for x in tensors}) == 1:
        return operands
    dtype = reduce(torch.promote_types, (x.dtype for x in tensors))
    return tuple(x.to(dtype) for x in tensors)


def as_product(
    equation: object, operands: tuple[object, ...], matmul: Callable[[Tensor, Tensor], Tensor]
) -> Tensor | None:
    """``bthd,bshd->bhts`` and the like as a product: batch axes, one contracted and one free axis each; else None.

    ``...`` is any batch axes of both operands. In ``bhid,bjd->bhij``, multi-query attention, h is a batch axis that the
    second operand is broadcast along.
    """
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    x, y = operands
    operands_term, arrow, out = equation.replace(" ", "").partition("->")
    first, _, second = operands_term.partition(",")
    if not arrow or not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return None
    if "..." in equation:
        lead = _LEAD[: x.ndim - len(first) + 3]
        first, second, out = (term.replace("...", lead) for term in (first, second, out))
    if not _are_distinct(first, second, out) or (len(first), len(second)) != (x.ndim, y.ndim):
        return None
    batch = [letter for letter in out if letter in first and letter in second]
    rows = [letter for letter in out if letter in first and letter not in second]
    columns = [letter for letter in out if letter in second and letter not in first]
    summed = [letter for letter in first if letter in second and letter not in out]
    if not batch or not rows or not columns or len(rows) + len(columns) > _MOST_FREE or len(summed) != 1:
        return None
    if len(first) + len(second) != 2 * (len(batch) + 1) + len(rows) + len(columns):
        return None  # an axis of one operand is summed
    if any(x.shape[first.index(letter)] != y.shape[second.index(letter)] for letter in [*batch, *summed]):
        return None  # one of them is broadcast
    # heads that one operand has alone: the other has one, [B, 1, .., ..]
    heads, at = [*rows[:-1], *columns[:-1]], len(batch)
    letters = [*batch, *heads, rows[-1], columns[-1]]
    apart = first if len(rows) > 1 else second
    if heads and (letters != [*out] or [*apart[: at + 1]] != [*batch, *heads]):
        return None  # Shaw's bthd,tsd->bhts, or masks by pixel, bqc,bchw->bqhw
    left = x.permute([first.index(letter) for letter in [*batch, *rows, *summed]])
    right = y.permute([second.index(letter) for letter in [*batch, *columns[:-1], *summed, columns[-1]]])
    left, right = (left.unsqueeze(at), right) if len(columns) > 1 else (left, right)
    left, right = (left, right.unsqueeze(at)) if len(rows) > 1 else (left, right)
    return matmul(left, right).permute([letters.index(letter) for letter in out])


#: letters for the axes of ``...``, which an equation does not have
_LEAD = "ZYXWVU"
#: free axes of both operands: one each, and heads of one of them
_MOST_FREE = 3


def _are_distinct(*terms: str) -> bool:
    """Whether every term consists of letters that occur once in it."""
    return all(term.isalpha() and len(set(term)) == len(term) for term in terms)
