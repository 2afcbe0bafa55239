"""Attention of a transformers decoder's layers in a call with posexport's KV cache.

Shape letters: B batch, T queries, S keys, D head size.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.encodings.encoding import Term
from posexport.encodings.local_window import BEYOND, LocalWindow
from posexport.encodings.nope import NoPE
from posexport.encodings.positions import Positions
from posexport.graph.ops.sliding_window_scores import SLIDING_WINDOW_SCORES
from posexport.nn.attention import SoftCapped, additive, attend, dropped_score
from posexport.nn.caching import narrowed, widened
from posexport.through import query_bias
from posexport.through.planned_call import CrossingCall, Layer, PlannedCall


class Scoring(NamedTuple):
    """How a layer computes scores from the products of queries and keys.

    Attributes:
        scale: factor of the products.
        cap: softcapping of the scores; None without it.
        sink: attention sinks [H]; None without them.
        biased: a module with a bias that depends on queries, and that bias (`query_bias`).
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
    """The bias by distance: T5's bias, or the mask of a sliding window; None without either."""
    if layer.biased:
        return call.bias
    return None if layer.window is None else _window(call, layer.window, q, k)


def _window(call: PlannedCall, width: int, q: Tensor, k: Tensor) -> Term:
    """A mask that keeps the keys of the last ``width`` tokens, including the query's token."""
    at = call.at.queries, call.at.keys
    if not call.padding_between:
        return LocalWindow(left=width - 1, right=0).scores(q, k, *at)
    positions_BS = call.at.keys.ids_BT
    tensors = q.new_tensor([BEYOND]), positions_BS, positions_BS.new_tensor([width])
    return Term(SLIDING_WINDOW_SCORES, tensors, *at)


def _with_blocks(blocks_BT: Tensor, call: PlannedCall, layer: Layer, like: Tensor) -> Tensor:
    """Additive mask [B, 1, T, S] of padding, keys outside the window, and later tokens of other images.

    Past tokens belong to no image of this call, because all tokens of an image are in one call.
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
