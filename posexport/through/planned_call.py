"""A forward pass of a decoder of transformers with posexport's KV cache: attention by the layers of a plan.

The plan is what a call without a cache showed (`posexport.through.attention.noting`).

Shape letters: B batch, T queries, S keys, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.encodings.encoding import Term
from posexport.encodings.local_window import BEYOND, LocalWindow
from posexport.encodings.nope import NoPE
from posexport.encodings.positions import Positions
from posexport.nn.attention import SoftCapped, additive, attend, dropped_score
from posexport.nn.cached_call import CachedCall, NotCachedError
from posexport.nn.caching import Kept, KeysAndValues, narrowed, widened
from posexport.ops.sliding_window_scores import SLIDING_WINDOW_SCORES
from posexport.through import query_bias


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


class Scoring(NamedTuple):
    """What a layer makes of the products of queries and keys.

    Attributes:
        biased: a module with a bias of queries, and the bias (`query_bias`).
    """

    scale: float
    cap: SoftCapped | None = None
    sink: Tensor | None = None
    biased: tuple[Any, Tensor] | None = None


def attended(call: PlannedCall, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """Attention to past and new tokens, or to the encoder's states, by the next layer of the plan."""
    layer, width = call.next_layer(), v.shape[-1]
    q, k, v = (widened(x, layer.size) for x in (q, k, v))
    if isinstance(call, CrossingCall):
        call.present.extend([(k, v)] if layer.cross else [])
        return q[..., :width]
    context = _to_states(call, q, scoring) if layer.cross else _to_tokens(call, layer, q, k, v, scoring)
    return narrowed(context, width)


def _to_tokens(call: PlannedCall, layer: Layer, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """Causal self-attention to the keys and values of past and new tokens."""
    scale, cap, sink, biased = scoring
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
        scores=_scores(call, layer, q, kept.keys),
        base=None if cap is None else cap.base(kept.keys, *at),
        causal=at,
        buffers=kept.buffers,
        sink=sink,
    )


def _scores(call: PlannedCall, layer: Layer, q: Tensor, k: Tensor) -> Term | None:
    """What is added by distance: T5's bias, or what drops keys outside a window."""
    if layer.biased:
        return call.bias
    return None if layer.window is None else _window(call, layer.window, q, k)


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


def _to_states(call: PlannedCall, q: Tensor, scoring: Scoring) -> Tensor:
    """Cross-attention to ``call.crossed``."""
    k, v = call.crossed[call.called - len(call.present) - 1]
    far = Positions.counted(k.shape[2])
    base = None if scoring.cap is None else scoring.cap.base(k, call.at.queries, far)
    return attend(q, k, v, scale=scoring.scale, mask=call.crossed_mask, base=base, sink=scoring.sink)
