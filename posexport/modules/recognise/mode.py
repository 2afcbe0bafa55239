"""While it is entered, attention that PyTorch's functions are asked for becomes attention nodes.

PyTorch's own layers ask for it where their fast path is off (`posexport.torch_fixes.as_exported`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posexport.modules.recognise import attention, multi_head, products
from posexport.torch_fixes import arange, complex_views, vmap_index
from posexport.torch_fixes.attention_flags import SDPA

_OF_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


class Recognised(TorchFunctionMode):
    """``reasons``: of every attention in the order of the calls, None where it became a node, else why not."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str | None] = []

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
            product = products.as_product(args[0], tuple(args[1:]), self._matmul)
            return func(*args) if product is None else product
        if (indexed := vmap_index.indexed(func, args)) is not None:
            return indexed
        if (elements := arange.elements(func, tuple(args), kwargs)) is not None:
            return elements
        return complex_views.called(func, args, kwargs)

    def _matmul(self, left: Tensor, right: Tensor) -> Tensor:
        """The product that an einsum is."""
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
        given = [] if attn_mask is None else [attn_mask]
        return self._attention(
            query, key, value, given, dropout_p, is_causal=is_causal, scale=scale, grouped=enable_gqa
        )

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        given: Sequence[Tensor],
        dropout: float = 0.0,
        *,
        is_causal: bool,
        scale: float | None = None,
        grouped: bool = False,
    ) -> Tensor:
        reason = attention.refusal(q, k, v, given, dropout, scale)
        self.reasons.append(reason)
        if dropout:
            mask = given[0] if given else None
            return SDPA(q, k, v, mask, dropout, is_causal, scale=scale, enable_gqa=grouped)
        if reason is not None:
            return attention.formula(q, k, v, given, is_causal=is_causal, scale=scale, grouped=grouped)
        return attention.node(q, k, v, given, is_causal=is_causal, scale=scale)

    def _multi_head(self, call: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights where they are asked for: a part of the graph that goes where nobody reads it."""
        reason = multi_head.refusal(call)
        weights = None
        if reason is not None or call["need_weights"]:
            by_formula, weights = F.multi_head_attention_forward(**(call | {"need_weights": True}))
            weights = weights if call["need_weights"] else None
        if reason is not None:
            self.reasons.append(reason)
            return by_formula, weights
        parts = multi_head.Projected(call)
        dropout = call["dropout_p"] if call["training"] else 0.0
        context = self._attention(parts.q, parts.k, parts.v, parts.masks, dropout, is_causal=parts.is_causal)
        return parts.output(context), weights
