"""Inkling's bias of scores, by query and distance, with posexport's KV cache.

transformers counts positions from 0 in every call; here tokens are counted by the mask, so that a later call and
padding change nothing. The scale of queries by the logarithm of their position, which transformers computes before its
attention is called, is brought to that position too.

Shape letters: B batch, H heads, T new tokens, S past and new tokens, D distances.
"""

from typing import Any

import torch
from torch import Tensor

from posexport.nn.attention import dropped_score
from posexport.nn.cached_call import current
from posexport.nn.caching import Kept
from posexport.through.planned_call import Layer, PlannedCall

#: the class of transformers that computes the bias; `posexport.through.states` replaces its forward
BIAS_CLASS = "InklingRelativeLogits"


def adds(module: Any) -> bool:
    """Whether an attention of transformers adds this bias."""
    return hasattr(module, "rel_logits_proj")


def relative_logits(layer: Any, relative_states: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """The forward of `BIAS_CLASS`: the bias [B, H, T, S], 0 from ``rel_extent`` tokens on."""
    call = current()
    queries_BT, keys_BS = query_positions[None], key_positions[None]
    if call is not None:
        queries_BT, keys_BS = call.at.queries.ids_BT, call.at.keys.ids_BT
    by_distance_BHTD = (relative_states @ layer.proj).transpose(1, 2)
    distance_BTS = queries_BT[:, :, None] - keys_BS[:, None]
    index = distance_BTS.clamp(0, layer.rel_extent - 1)[:, None].expand(*by_distance_BHTD.shape[:2], -1, -1)
    beyond_BTS = (distance_BTS < 0) | (distance_BTS >= layer.rel_extent)
    bias_BHTS: Tensor = by_distance_BHTD.gather(-1, index).masked_fill(beyond_BTS[:, None], 0.0)
    return bias_BHTS


def attended(
    module: Any, call: PlannedCall, layer: Layer, q: Tensor, kept: Kept, scale: float, bias_BHTS: Tensor
) -> Tensor:
    """Causal attention to the keys and values of past and new tokens, [B, H, T, D]."""
    queries, keys = call.at.queries, call.at.keys
    ratio = _scale(module, queries.ids_BT) / _scale(module, torch.arange(q.shape[2], device=q.device)[None])
    ratio_B1T1 = ratio[:, None, :, None].to(q.dtype)
    # tokens before the query, in its window
    kept_BTS = (queries.slots_T[:, None] >= keys.slots_T) & (call.mask_BS != 0)[:, None]
    if layer.window is not None:
        kept_BTS = kept_BTS & (queries.ids_BT[:, :, None] - keys.ids_BT[:, None] < layer.window)
    share = q.shape[1] // kept.keys.shape[1]
    k, v = (x[:, :, None].expand(-1, -1, share, -1, -1).flatten(1, 2) for x in (kept.keys, kept.values))
    scores = (q * ratio_B1T1) @ k.mT * scale + bias_BHTS * ratio_B1T1
    return torch.where(kept_BTS[:, None], scores, dropped_score(q.dtype)).softmax(-1) @ v


def _scale(module: Any, positions: Tensor) -> Tensor:
    """What transformers multiplies queries at ``positions`` by."""
    floor = None if module.is_sliding else module.config.log_scaling_n_floor
    if floor is None:
        return torch.ones_like(positions, dtype=torch.float32)
    scale: Tensor = 1 + module.config.log_scaling_alpha * ((positions + 1).float() / floor).clamp(min=1.0).log()
    return scale
