"""A function mode in which PyTorch's attention functions become attention nodes.

PyTorch's layers call these functions where their fast path is off (`posexport.sources.torch_fixes.as_exported`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posexport.modules.recognise import attention
from posexport.modules.recognise.attention import Projected, as_product, multi_head_refusal, of_one_dtype
from posexport.modules.recognise.linear_einsum import as_linear
from posexport.nn.calling import carried, carrying
from posexport.sources.torch_fixes import (
    adaptive_pool,
    arange,
    bags,
    byte_masks,
    clamps,
    complex_views,
    distances,
    grouped,
    max_pool,
    recurrent,
    rolls,
    shapes,
    slices,
    splits,
    squeezes,
    stacks,
    strides,
    vmap_index,
)
from posexport.sources.torch_fixes.attention_flags import SDPA
from posexport.sources.torch_fixes.packed_rows import PackedRows

#: what PyTorch's exporter writes wrongly, or not at all, in another way
_FIXES = (
    adaptive_pool.pooled,
    arange.elements,
    bags.bags,
    byte_masks.chosen,
    clamps.clamped,
    distances.distances,
    grouped.convolved,
    max_pool.maxima,
    rolls.rolled,
    shapes.counted,
    slices.sliced,
    splits.parts,
    squeezes.squeezed,
    stacks.stacked,
    strides.strided,
)
_OF_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


class Recognised(TorchFunctionMode):
    """``reasons``: of every attention, in the order of the calls, None where it became a node, else why it did not."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str | None] = []
        self._packed = PackedRows()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is SDPA:
            return self._scaled_dot_product(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            bound = _OF_MULTI_HEAD.bind(*args, **kwargs)
            bound.apply_defaults()
            return self._multi_head(dict(bound.arguments))
        if func is torch.einsum and args and not kwargs:
            operands = of_one_dtype(tuple(args[1:]))
            product = as_product(args[0], operands, self._matmul)
            product = as_linear(args[0], operands) if product is None else product
            return func(args[0], *operands) if product is None else product
        if (indexed := vmap_index.indexed(func, args)) is not None:
            return indexed
        if (mended := _mended(func, tuple(args), kwargs)) is not None:
            return mended
        if (states := recurrent.recurrent(func, tuple(args), kwargs, self._packed)) is not None:
            return states
        if (rows := self._packed.called(func, args, kwargs)) is not None:
            return rows
        return complex_views.called(func, args, kwargs)

    def _matmul(self, left: Tensor, right: Tensor) -> Tensor:
        """The product that an einsum computes; a subclass may look at it."""
        return left @ right

    def _scaled_dot_product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        masks = [] if attn_mask is None else [attn_mask]
        return self._attention(
            query, key, value, masks, dropout_p, is_causal=is_causal, scale=scale, grouped=enable_gqa
        )

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        masks: Sequence[Tensor],
        dropout: float = 0.0,
        *,
        is_causal: bool,
        scale: float | None = None,
        grouped: bool = False,
    ) -> Tensor:
        reason = attention.refusal(q, k, v, masks, dropout, scale)
        self.reasons.append(reason)
        if dropout:
            mask = masks[0] if masks else None
            return SDPA(q, k, v, mask, dropout, is_causal, scale=scale, enable_gqa=grouped)
        if reason is not None:
            return attention.formula(q, k, v, masks, is_causal=is_causal, scale=scale, grouped=grouped)
        return attention.node(q, k, v, masks, is_causal=is_causal, scale=scale)

    def _multi_head(self, call: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The output, and the attention weights if needed; the graph loses them where nothing reads them."""
        reason = multi_head_refusal(call)
        weights = None
        if reason is not None or call["need_weights"]:
            by_formula, weights = F.multi_head_attention_forward(**(call | {"need_weights": True}))
            weights = weights if call["need_weights"] else None
        if reason is not None:
            self.reasons.append(reason)
            return by_formula, weights
        parts = Projected(call)
        dropout = call["dropout_p"] if call["training"] else 0.0
        context = self._attention(parts.q, parts.k, parts.v, parts.masks, dropout, is_causal=parts.is_causal)
        return parts.output(context), weights


def _mended(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a call returns that PyTorch's exporter writes wrongly, or not at all; None for others."""
    for fix in _FIXES:
        if (result := fix(func, args, kwargs)) is not None:
            return result
    return None


def chosen(mode: Recognised) -> AbstractContextManager[Recognised]:
    """Inside the block users' modules are called in ``mode``, in a trace and otherwise."""
    return carrying(mode, Recognised)


def traced() -> Recognised:
    """The mode of a user's module that is traced."""
    return carried(Recognised) or Recognised()


def called() -> AbstractContextManager[object]:
    """The mode of a user's module that is called by PyTorch: none, unless one was `chosen`."""
    return carried(Recognised) or nullcontext()
