"""Attention as transformers' layers ask for it, and their masks: functions that its registries know as `NAME`.

Without a cache a layer gets PyTorch's ``F.scaled_dot_product_attention`` with its own mask, of which
`posexport.modules.recognise` makes a node. In a `PlannedCall` it gets our attention behind our KV cache: what its mask
drops beside padding is then causality and a window, found once by `noting`.

Shape letters: B batch, H heads, G KV heads, T queries, S keys, D head size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.encodings.local_window import LocalWindow
from posexport.encodings.nope import NoPE
from posexport.encodings.positions import Positions
from posexport.modules.plain.plan import NotCausalError
from posexport.modules.recognise import masks
from posexport.nn.attention import additive, attend, dropped_score
from posexport.nn.cached_call import CachedCall, NotCachedError, current
from posexport.nn.caching import KeysAndValues, narrowed, widened
from posexport.nn.scoring import SoftCapped
from posexport.through import experts

#: in transformers' registries; packed: several images in one row, which transformers leaves together in a call of
#: attention where its name has flash in it
NAME, PACKED = "posexport", "posexport_flash"
_ORDER = "_posexport_order"
#: tokens that masks are asked about, far beyond any window, and keys after the last of them
_ASKED, _AFTER = (5, 1 << 16, 1 << 18), 64


@dataclass(frozen=True)
class Order:
    """What a mask drops beside padding: keys after the query, and those ``window`` tokens before it and further."""

    window: int | None = None


@dataclass(frozen=True)
class Layer:
    """One attention: KV heads, what keys and values are padded to, its window; ``cross``: of an encoder's states."""

    kv_heads: int
    size: int
    window: int | None
    cross: bool = False


@dataclass
class PlannedCall(CachedCall):
    """A call of a decoder of transformers.

    Attributes:
        plan: its attentions, in the order of their calls.
        crossed: keys and values of an encoder's states, for those of the plan that are ``cross``.
        crossed_mask: what is added to scores of these keys, [B, 1, 1, S].
        called: how many attentions were called.
        blocks_BT: of every new token, the number of its image; -1: none. Tokens of an image attend to one another.
    """

    plan: Sequence[Layer] = ()
    crossed: Sequence[KeysAndValues] = ()
    crossed_mask: Tensor | None = None
    called: int = 0
    blocks_BT: Tensor | None = None

    def next_layer(self) -> Layer:
        """Of the plan, the one that is called now."""
        if self.called >= len(self.plan):
            raise NotCachedError(f"it makes more calls of attention than the {len(self.plan)} of its first call")
        self.called += 1
        return self.plan[self.called - 1]


@dataclass
class CrossingCall(PlannedCall):
    """A call whose ``present`` becomes the keys and values of the states that a decoder is given; it answers nothing.

    Of a traced call nothing else remains in the graph.
    """


_NOTED: ContextVar[list[Layer] | None] = ContextVar("posexport_noted", default=None)


@contextmanager
def noting() -> Iterator[list[Layer]]:
    """Inside the block, which is no cached call, every attention adds what it is; NotCachedError where none fits."""
    layers: list[Layer] = []
    token = _NOTED.set(layers)
    try:
        yield layers
    finally:
        _NOTED.reset(token)


def register() -> None:
    """Make `NAME` known to transformers: attention, its masks, and experts."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    AttentionInterface.register(NAME, attention)
    AttentionInterface.register(PACKED, packed)
    AttentionMaskInterface.register(NAME, mask)
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts.all_of_them)


def use(model: Any, *, attention: str = NAME, experts: str = NAME) -> None:
    """Make ``model`` compute attention, masks and experts by these names of transformers' registries."""
    for part in model.modules():
        if (config := getattr(part, "config", None)) is not None:
            # as from_pretrained does
            config._attn_implementation, config._experts_implementation = attention, experts  # noqa: SLF001


def mask(*, mask_function: Callable[..., Tensor], **given: Any) -> Tensor | None:
    """Bool [B, 1, T, S], True keeps; left out for the padding of no call, so that a graph has it for any."""
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    if given.get("attention_mask") is None and mask_function is bidirectional_mask_function:
        return None
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    made: Tensor = sdpa_mask(mask_function=mask_function, **{**given, **skips})
    if _NOTED.get() is not None:
        setattr(made, _ORDER, _order(mask_function))
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
    """[B, T, H, D], as transformers' own functions answer; ``s_aux``: a sink of every head."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else float(scaling)
    cap, sink = None if softcap is None else SoftCapped(softcap), s_aux
    call, noted = current(), _NOTED.get()
    if isinstance(call, PlannedCall):
        context = _cached(call, query, key, value, scale, cap, sink)
        return context.transpose(1, 2).contiguous(), None
    if noted is not None:
        if position_bias is not None:
            raise NotCachedError("it adds a bias to its scores, which a cache does not have")
        noted.append(_layer(query, key, value, attention_mask, causal=causal))
    given = [each for each in (attention_mask, position_bias) if each is not None]
    causal = causal and attention_mask is None
    if cap is None and sink is None and len(given) < 2:
        grouped = key.shape[1] != query.shape[1]
        bias = given[0] if given else None
        context = F.scaled_dot_product_attention(
            query, key, value, bias, dropout, causal, scale=scale, enable_gqa=grouped
        )
    else:
        context = _with_more(query, key, value, given, scale, cap, sink, causal=causal)
    return context.transpose(1, 2).contiguous(), None


def packed(
    module: nn.Module,  # noqa: ARG001 (as transformers' own functions)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (it is none)
    *,
    cu_seq_lens_q: Tensor,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """[1, N, H, D] of N patches that attend to those with the same number in ``cu_seq_lens_q``, [N]."""
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
    """What PyTorch's function has no argument for."""
    queries, keys = Positions.counted(q.shape[2]), Positions.counted(k.shape[2])
    added = masks.added(given, q, k.shape[2])
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
    call: PlannedCall, q: Tensor, k: Tensor, v: Tensor, scale: float, cap: SoftCapped | None, sink: Tensor | None
) -> Tensor:
    """Of the new tokens to the cached ones and themselves, or to an encoder's states."""
    layer, width = call.next_layer(), v.shape[-1]
    q, k, v = (widened(x, layer.size) for x in (q, k, v))
    if isinstance(call, CrossingCall):
        call.present.extend([(k, v)] if layer.cross else [])
        return q[..., :width]
    context = (_to_states if layer.cross else _to_tokens)(call, layer, q, k, v, scale=scale, cap=cap, sink=sink)
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
) -> Tensor:
    kept = call.at.kept(NoPE(), k, v, None if call.past is None else call.past[len(call.present)])
    call.present.append(kept.present)
    at = call.at.queries, call.at.keys
    if call.blocks_BT is not None:
        mask = _with_blocks(call.blocks_BT, call, layer, q)
        base = None if cap is None else cap.base(kept.keys, *at)
        return attend(q, kept.keys, kept.values, scale=scale, mask=mask, base=base, sink=sink)
    near = None if layer.window is None else LocalWindow(left=layer.window - 1, right=0)
    return attend(
        q,
        kept.keys,
        kept.values,
        scale=scale,
        mask=additive(call.mask_BS, q),
        scores=None if near is None else near.scores(q, kept.keys, *at),
        base=None if cap is None else cap.base(kept.keys, *at),
        causal=at,
        buffers=kept.buffers,
        sink=sink,
    )


def _with_blocks(blocks_BT: Tensor, call: PlannedCall, layer: Layer, like: Tensor) -> Tensor:
    """What drops padding, later tokens but those of the same image, and those before a window, [B, 1, T, S].

    Of past tokens' images nothing is left to see: these were read in one call.
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
    """``k`` and ``v`` are of states that stand for those of the call, which are given as keys and values."""
    k, v = call.crossed[call.called - len(call.present) - 1]
    far = Positions.counted(k.shape[2])
    base = None if cap is None else cap.base(k, call.at.queries, far)
    return attend(q, k, v, scale=scale, mask=call.crossed_mask, base=base, sink=sink)


def _layer(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, *, causal: bool) -> Layer:
    """What a layer keeps, of a call that is no cached one; keys of another length are of an encoder's states."""
    size = max(k.shape[-1], v.shape[-1])
    if k.shape[2] != q.shape[2] and attention_mask is None:
        return Layer(k.shape[1], size, None, cross=True)
    order = getattr(attention_mask, _ORDER, None)
    if attention_mask is None and causal:
        order = Order()
    if order is None:
        raise NotCachedError("one of its layers has a mask of its own making")
    return Layer(k.shape[1], size, order.window)


def _order(mask_function: Callable[..., Tensor]) -> Order:
    """What ``mask_function`` keeps of three queries far apart.

    Raises:
        NotCachedError: it is not causality and a window.
    """
    last = _ASKED[-1]
    keys_S, queries_T = torch.arange(last + _AFTER), torch.tensor(_ASKED)
    nought = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    try:
        kept = mask_function(nought, nought, queries_T[None, None, :, None], keys_S[None, None, None])
    except (IndexError, RuntimeError, TypeError) as err:
        raise NotCachedError("its mask depends on more than where tokens stand") from err
    kept_TS = kept.broadcast_to(1, 1, len(_ASKED), len(keys_S))[0, 0]
    if bool(kept_TS[-1, last + 1 :].any()):
        raise NotCausalError("its attention sees later tokens")
    window = int(kept_TS[-1].sum())
    behind_TS = queries_T[:, None] - keys_S
    if not torch.equal(kept_TS, (behind_TS >= 0) & (behind_TS < window)):
        raise NotCachedError("its mask is more than causality, a window and padding")
    return Order(None if window > last else window)
