"""Attention and mask functions for transformers' ``AttentionInterface`` and ``AttentionMaskInterface``, named `NAME`.

Without a KV cache a layer calls PyTorch's ``F.scaled_dot_product_attention`` with transformers' mask, which
`posexport.modules.recognise` fuses into one node. In a `PlannedCall` it calls posexport's attention with posexport's KV
cache. The mask is then causality and a sliding window, which `noting` recorded before, and padding.

Shape letters: B batch, H heads, G KV heads, T queries, S keys, D head size.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from posexport.encodings.positions import Positions
from posexport.modules.recognise import attention as recognised
from posexport.nn.attention import SoftCapped, attend
from posexport.nn.cached_call import NotCachedError, current
from posexport.nn.calling import carried, carrying
from posexport.through import bucketed_bias, query_bias
from posexport.through.experts import dense_experts, stack
from posexport.through.orders import Order, order_of
from posexport.through.planned_attention import Scoring, attended
from posexport.through.planned_call import Layer, PlannedCall
from posexport.through.renewed import renew

#: names in transformers' registries. PACKED and ROWS are for several images in one sequence, which transformers passes
#: to one call of attention only if the name contains "flash"
NAME, PACKED, ROWS = "posexport", "posexport_flash", "posexport_flash_rows"


@dataclass
class Noted:
    """What one forward pass called: attention layers, masks with their orders, keys of self-attention, biases."""

    layers: list[Layer] = field(default_factory=list)
    masks: list[tuple[Tensor, Order]] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    biases: list[Tensor] = field(default_factory=list)

    def order_of(self, mask: Tensor) -> Order | None:
        """The order of a mask, or of a slice that contains all its rows; None if transformers did not create it."""
        same = (order for x, order in self.masks if (x.data_ptr(), x.shape) == (mask.data_ptr(), mask.shape))
        return next(same, None)


@contextmanager
def noting() -> Iterator[list[Layer]]:
    """Record the attention layers that are called inside the block, without a KV cache.

    A call that no `Layer` can describe raises NotCachedError.
    """
    with carrying(Noted(), Noted) as noted:
        yield noted.layers


def register() -> None:
    """Register attention, masks and experts with transformers as `NAME`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    AttentionInterface.register(NAME, attention)
    AttentionInterface.register(PACKED, packed)
    AttentionInterface.register(ROWS, in_rows)
    AttentionMaskInterface.register(NAME, mask)
    ALL_EXPERTS_FUNCTIONS.register(NAME, dense_experts)


def use(model: Any, *, attention: str = NAME, experts: str = NAME) -> None:
    """Select these implementations of attention (with masks) and experts for ``model`` and its submodules."""
    renew(model)
    if experts == NAME:
        stack(model)
    for module in model.modules():
        if (config := getattr(module, "config", None)) is not None:
            # from_pretrained sets these attributes too
            config._attn_implementation, config._experts_implementation = attention, experts  # noqa: SLF001


def use_apart(submodule: Any, *, attention: str) -> None:
    """Select the attention of one submodule of a model; it may share its configuration with the rest of the model."""
    copies: dict[int, Any] = {}
    for module in submodule.modules():
        if (config := getattr(module, "config", None)) is not None:
            module.config = copies.setdefault(id(config), copy.copy(config))
            module.config._attn_implementation = attention  # noqa: SLF001 (as `use`)


def mask(*, mask_function: Callable[..., Tensor], **arguments: Any) -> Tensor | None:
    """Boolean mask [B, 1, T, S], True to attend; None for bidirectional attention without padding.

    transformers' shortcuts for certain masks are off, because the graph must be correct for every mask.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    if arguments.get("attention_mask") is None and mask_function is bidirectional_mask_function:
        return None
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask_B1TS: Tensor = sdpa_mask(mask_function=mask_function, **{**arguments, **skips})
    if (noted := carried(Noted)) is not None:
        noted.masks.append((mask_B1TS, order_of(mask_function)))
    return mask_B1TS


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention with the signature of transformers' functions; returns [B, T, H, D]. ``s_aux``: attention sinks [H]."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else float(scaling)
    cap, sink = None if softcap is None else SoftCapped(softcap), s_aux
    if cap is not None:  # `attend` caps before it scales, the model after: the queries are scaled instead
        query, scale = query * scale, 1.0
    call, noted = current(), carried(Noted)
    # with posexport's KV cache
    if isinstance(call, PlannedCall):
        if bucketed_bias.has_table(module):
            call.bias = bucketed_bias.term(module, query, call.at)
        biased = (module, position_bias) if position_bias is not None and query_bias.adds(module) else None
        context = attended(call, query, key, value, Scoring(scale, cap, sink, biased))
        return context.transpose(1, 2).contiguous(), None
    if noted is not None:
        layer = _layer(noted, query, key, value, attention_mask, causal=causal)
        if not query_bias.adds(module) and bucketed_bias.is_added(module, position_bias, noted.biases):
            noted.biases.extend([] if position_bias is None else [position_bias])
            if layer.window is not None:
                raise NotCachedError("one of its layers has a bias and a sliding window")
            layer = replace(layer, biased=True)
        noted.layers.append(layer)
    # without a cache: PyTorch's function, unless it lacks one of the arguments
    masks = [x for x in (attention_mask, position_bias) if x is not None]
    causal = causal and attention_mask is None
    if cap is None and sink is None and len(masks) + causal < 2:
        grouped = key.shape[1] != query.shape[1]
        bias = masks[0] if masks else None
        context = F.scaled_dot_product_attention(
            query, key, value, bias, dropout, causal, scale=scale, enable_gqa=grouped
        )
    else:
        context = _with_more(query, key, value, masks, scale, cap, sink, causal=causal)
    return context.transpose(1, 2).contiguous(), None


def packed(
    module: nn.Module,  # noqa: ARG001 (the signature of transformers' functions)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (it is none)
    *,
    cu_seq_lens_q: Tensor,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention among patches with the same id in ``cu_seq_lens_q`` [N]; returns [1, N, H, D]."""
    mask_NN = cu_seq_lens_q[:, None] == cu_seq_lens_q
    context = F.scaled_dot_product_attention(query, key, value, mask_NN[None, None], scale=scaling)
    return context.transpose(1, 2).contiguous(), None


def in_rows(
    module: nn.Module,  # noqa: ARG001 (the signature of transformers' functions)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (it is none)
    *,
    cu_seq_lens_q: Tensor,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention among the patches of each row, except padding, where ``cu_seq_lens_q`` [B, N] is False.

    Returns [1, B * N, H, D].
    """
    q, k, v = (x[0].reshape(x.shape[1], *cu_seq_lens_q.shape, -1).transpose(0, 1) for x in (query, key, value))
    context = F.scaled_dot_product_attention(q, k, v, cu_seq_lens_q[:, None, None], scale=scaling)
    return context.transpose(1, 2).flatten(0, 1)[None], None


def _with_more(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masks: Sequence[Tensor],
    scale: float,
    cap: SoftCapped | None,
    sink: Tensor | None,
    *,
    causal: bool,
) -> Tensor:
    """Attention with a soft cap, attention sinks or several masks, which PyTorch's function does not support."""
    queries, keys = Positions.counted(q.shape[2]), Positions.counted(k.shape[2])
    added = recognised.added(masks, q, k.shape[2])
    return attend(
        q,
        k,
        v,
        scale=scale,
        mask=None if added is None else added.mask,
        base=None if cap is None else cap.base(k, queries, keys),
        causal=(queries, keys) if causal else None,
        sink=sink,
    )


def _layer(noted: Noted, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, *, causal: bool) -> Layer:
    """The `Layer` that describes one call without a cache.

    A call without a mask, with different numbers of keys and queries, is cross-attention.
    """
    size = max(k.shape[-1], v.shape[-1])
    if k.shape[2] != q.shape[2] and attention_mask is None:
        return Layer(k.shape[1], size, None, cross=True)
    without_mask = Order() if causal else None
    order = without_mask if attention_mask is None else noted.order_of(attention_mask)
    if order is None:
        raise NotCachedError("one of its layers has a mask of its own making")
    shares = next((number for number, key in enumerate(noted.keys) if key is k), None)
    noted.keys.append(k)
    return Layer(k.shape[1], size, order.window, shares=shares)
