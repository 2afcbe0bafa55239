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
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.encodings.encoding import Term
from posexport.encodings.local_window import BEYOND, LocalWindow
from posexport.encodings.nope import NoPE
from posexport.encodings.positions import Positions
from posexport.modules.recognise import attention as recognised
from posexport.nn.attention import SoftCapped, additive, attend, dropped_score
from posexport.nn.cached_call import CachedCall, NotCachedError, current
from posexport.nn.caching import Kept, KeysAndValues, narrowed, widened
from posexport.ops.sliding_window_scores import SLIDING_WINDOW_SCORES
from posexport.through import bucketed_bias, query_bias
from posexport.through.experts import dense_experts, stack
from posexport.through.orders import Order, order_of
from posexport.through.renewed import renew

#: names in transformers' registries. PACKED is for several images in one sequence, which transformers passes to one
#: call of attention only if the name contains "flash"
NAME, PACKED = "posexport", "posexport_flash"


@dataclass(frozen=True)
class Layer:
    """The attention of one layer.

    Attributes:
        kv_heads: KV heads.
        size: the head size that keys and values are padded to.
        window: the sliding window; None without one.
        cross: cross-attention to the encoder's hidden states.
        shares: the self-attention whose keys and values it reads, by its number; None: its layer computes them.
        biased: it adds T5's bias (`bucketed_bias`).
    """

    kv_heads: int
    size: int
    window: int | None
    cross: bool = False
    shares: int | None = None
    biased: bool = False


@dataclass
class PlannedCall(CachedCall):
    """A forward pass of a decoder of transformers with posexport's KV cache.

    Attributes:
        plan: the attentions of the decoder, in the order of their calls.
        crossed: keys and values of the encoder's states, one pair per cross-attention of the plan.
        crossed_mask: additive mask of the encoder's states, [B, 1, 1, S].
        called: number of attentions that were called.
        read: keys and values of every self-attention that was called.
        blocks_BT: index of every new token's image, -1 for text. Attention inside an image is bidirectional.
        windows_alone: it is so in layers with a sliding window alone.
        padding_between: there may be padding between tokens of a row: sliding windows count tokens, not slots.
        bias: T5's bias of the last layer that has a table.
    """

    plan: Sequence[Layer] = ()
    crossed: Sequence[KeysAndValues] = ()
    crossed_mask: Tensor | None = None
    called: int = 0
    read: list[Kept] = field(default_factory=list)
    blocks_BT: Tensor | None = None
    windows_alone: bool = False
    padding_between: bool = False
    bias: Term | None = None

    def next_layer(self) -> Layer:
        """The layer of the plan that is called now; advances to the next one."""
        if self.called >= len(self.plan):
            raise NotCachedError(f"it makes more calls of attention than the {len(self.plan)} of its first call")
        self.called += 1
        return self.plan[self.called - 1]


@dataclass
class CrossingCall(PlannedCall):
    """A call that only computes the cross-attention keys and values of the encoder's states, into ``present``.

    Its other outputs are ignored, so that nothing else remains in a traced graph.
    """


@dataclass
class Noted:
    """The attentions of one forward pass, its masks with their orders, keys of self-attention and biases."""

    layers: list[Layer] = field(default_factory=list)
    masks: list[tuple[Tensor, Order]] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    biases: list[Tensor] = field(default_factory=list)

    def order_of(self, mask: Tensor) -> Order | None:
        """The order of a mask or of a slice of all its rows; None: the model made another mask."""
        same = (order for made, order in self.masks if (made.data_ptr(), made.shape) == (mask.data_ptr(), mask.shape))
        return next(same, None)


_NOTED: ContextVar[Noted | None] = ContextVar("posexport_noted", default=None)


@contextmanager
def noting() -> Iterator[list[Layer]]:
    """Record the attentions that are called inside the block, which must not be a cached call.

    Inside the block a call that no `Layer` describes raises NotCachedError.
    """
    noted = Noted()
    token = _NOTED.set(noted)
    try:
        yield noted.layers
    finally:
        _NOTED.reset(token)


def register() -> None:
    """Register attention, masks and experts with transformers as `NAME`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    AttentionInterface.register(NAME, attention)
    AttentionInterface.register(PACKED, packed)
    AttentionMaskInterface.register(NAME, mask)
    ALL_EXPERTS_FUNCTIONS.register(NAME, dense_experts)


def use(model: Any, *, attention: str = NAME, experts: str = NAME) -> None:
    """Select these implementations of attention (with masks) and experts for ``model`` and its submodules."""
    renew(model)
    if experts == NAME:
        stack(model)
    for part in model.modules():
        if (config := getattr(part, "config", None)) is not None:
            # from_pretrained sets these attributes too
            config._attn_implementation, config._experts_implementation = attention, experts  # noqa: SLF001


def use_apart(part: Any, *, attention: str) -> None:
    """Select the attention of a part of a model that shares its configuration with the rest."""
    copies: dict[int, Any] = {}
    for each in part.modules():
        if (config := getattr(each, "config", None)) is not None:
            each.config = copies.setdefault(id(config), copy.copy(config))
            each.config._attn_implementation = attention  # noqa: SLF001 (as `use`)


def mask(*, mask_function: Callable[..., Tensor], **given: Any) -> Tensor | None:
    """Boolean mask [B, 1, T, S], True to attend; None for bidirectional attention without padding.

    transformers' shortcuts for certain masks are off, since a graph must hold for every mask.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    if given.get("attention_mask") is None and mask_function is bidirectional_mask_function:
        return None
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    made: Tensor = sdpa_mask(mask_function=mask_function, **{**given, **skips})
    if (noted := _NOTED.get()) is not None:
        noted.masks.append((made, order_of(mask_function)))
    return made


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
    """Attention with the signature of transformers' functions, to [B, T, H, D]; ``s_aux``: attention sinks, [H]."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else float(scaling)
    cap, sink = None if softcap is None else SoftCapped(softcap), s_aux
    if cap is not None:  # scores are capped behind the scale, by `attend` before it
        query, scale = query * scale, 1.0
    call, noted = current(), _NOTED.get()
    # with posexport's KV cache
    if isinstance(call, PlannedCall):
        if bucketed_bias.has_table(module):
            call.bias = bucketed_bias.term(module, query, call.at)
        biased = (module, position_bias) if position_bias is not None and query_bias.adds(module) else None
        context = _cached(call, query, key, value, scale, cap, sink, biased)
        return context.transpose(1, 2).contiguous(), None
    if noted is not None:
        layer = _layer(noted, query, key, value, attention_mask, causal=causal)
        if not query_bias.adds(module) and bucketed_bias.is_added(module, position_bias, noted.biases):
            noted.biases.extend([] if position_bias is None else [position_bias])
            if layer.window is not None:
                raise NotCachedError("one of its layers has a bias and a sliding window")
            layer = replace(layer, biased=True)
        noted.layers.append(layer)
    # without a cache: PyTorch's function, unless there is an argument that it does not have
    given = [each for each in (attention_mask, position_bias) if each is not None]
    causal = causal and attention_mask is None
    if cap is None and sink is None and len(given) + causal < 2:
        grouped = key.shape[1] != query.shape[1]
        bias = given[0] if given else None
        context = F.scaled_dot_product_attention(
            query, key, value, bias, dropout, causal, scale=scale, enable_gqa=grouped
        )
    else:
        context = _with_more(query, key, value, given, scale, cap, sink, causal=causal)
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
    """Attention among patches with the same id in ``cu_seq_lens_q`` [N], to [1, N, H, D]."""
    mask_NN = cu_seq_lens_q[:, None] == cu_seq_lens_q
    context = F.scaled_dot_product_attention(query, key, value, mask_NN[None, None], scale=scaling)
    return context.transpose(1, 2).contiguous(), None


def _with_more(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Sequence[Tensor],
    scale: float,
    cap: SoftCapped | None,
    sink: Tensor | None,
    *,
    causal: bool,
) -> Tensor:
    """Attention with a soft cap, attention sinks or several masks, which PyTorch's function does not support."""
    queries, keys = Positions.counted(q.shape[2]), Positions.counted(k.shape[2])
    added = recognised.added(given, q, k.shape[2])
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


def _cached(
    call: PlannedCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    cap: SoftCapped | None,
    sink: Tensor | None,
    biased: tuple[Any, Tensor] | None,
) -> Tensor:
    """Attention to past and new tokens, or to the encoder's states, by the next layer of the plan.

    ``biased``: a module with a bias of queries, and the bias (`query_bias`).
    """
    layer, width = call.next_layer(), v.shape[-1]
    q, k, v = (widened(x, layer.size) for x in (q, k, v))
    if isinstance(call, CrossingCall):
        call.present.extend([(k, v)] if layer.cross else [])
        return q[..., :width]
    if layer.cross:
        context = _to_states(call, layer, q, k, v, scale=scale, cap=cap, sink=sink)
    else:
        context = _to_tokens(call, layer, q, k, v, scale=scale, cap=cap, sink=sink, biased=biased)
    return narrowed(context, width)


def _to_tokens(
    call: PlannedCall,
    layer: Layer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    cap: SoftCapped | None,
    sink: Tensor | None,
    biased: tuple[Any, Tensor] | None,
) -> Tensor:
    """Causal self-attention to the keys and values of past and new tokens."""
    if layer.shares is not None:
        kept = call.read[layer.shares]
    else:
        kept = call.at.kept(NoPE(), k, v, None if call.past is None else call.past[len(call.present)])
        call.present.append(kept.present)
    call.read.append(kept)
    if biased is not None:
        return query_bias.attended(biased[0], call, layer, q, kept, scale, biased[1])
    at = call.at.queries, call.at.keys
    if call.blocks_BT is not None and not (call.windows_alone and layer.window is None):
        mask = _with_blocks(call.blocks_BT, call, layer, q)
        base = None if cap is None else cap.base(kept.keys, *at)
        return attend(q, kept.keys, kept.values, scale=scale, mask=mask, base=base, sink=sink)
    return attend(
        q,
        kept.keys,
        kept.values,
        scale=scale,
        mask=additive(call.mask_BS, q),
        scores=call.bias
        if layer.biased
        else None
        if layer.window is None
        else _window(call, layer.window, q, kept.keys),
        base=None if cap is None else cap.base(kept.keys, *at),
        causal=at,
        buffers=kept.buffers,
        sink=sink,
    )


def _window(call: PlannedCall, width: int, q: Tensor, k: Tensor) -> Term:
    """Scores that drop the keys of all tokens but the last ``width``, the query's among them."""
    at = call.at.queries, call.at.keys
    if not call.padding_between:
        return LocalWindow(left=width - 1, right=0).scores(q, k, *at)
    positions_BS = call.at.keys.ids_BT
    tensors = q.new_tensor([BEYOND]), positions_BS, positions_BS.new_tensor([width])
    return Term(SLIDING_WINDOW_SCORES, tensors, *at)


def _with_blocks(blocks_BT: Tensor, call: PlannedCall, layer: Layer, like: Tensor) -> Tensor:
    """Additive mask [B, 1, T, S]: padding, keys outside the window, and later tokens of other images.

    Past tokens belong to no image of this call, since all tokens of an image are in one call.
    """
    queries_T, keys_S = call.at.queries.slots_T, call.at.keys.slots_T
    past = call.mask_BS.shape[1] - blocks_BT.shape[1]
    blocks_BS = F.pad(blocks_BT, (past, 0), value=-1)
    same_BTS = (blocks_BT[:, :, None] == blocks_BS[:, None]) & (blocks_BT >= 0)[:, :, None]
    behind_TS = queries_T[:, None] - keys_S
    kept_BTS = ((behind_TS >= 0) | same_BTS) & (call.mask_BS != 0)[:, None]
    if layer.window is not None:
        kept_BTS = kept_BTS & (behind_TS < layer.window)
    zero = torch.zeros((), dtype=like.dtype, device=like.device)
    return torch.where(kept_BTS[:, None], zero, dropped_score(like.dtype))


def _to_states(
    call: PlannedCall,
    layer: Layer,  # noqa: ARG001 (as `_to_tokens`)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    cap: SoftCapped | None,
    sink: Tensor | None,
) -> Tensor:
    """Cross-attention to ``call.crossed``; ``k`` and ``v`` are ignored, they are of placeholder states."""
    k, v = call.crossed[call.called - len(call.present) - 1]
    far = Positions.counted(k.shape[2])
    base = None if cap is None else cap.base(k, call.at.queries, far)
    return attend(q, k, v, scale=scale, mask=call.crossed_mask, base=base, sink=sink)


def _layer(noted: Noted, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, *, causal: bool) -> Layer:
    """The layer of a call without a cache. Keys and queries of different lengths mean cross-attention."""
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
