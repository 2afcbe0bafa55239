"""Checks of a layer's arguments, which raise PosexportError with one sentence.

Lengths are looked at outside of traces only, and values on the CPU only: on a GPU that would wait for all work so far.

Shape letters: B batch, T tokens, S tokens attended to, P past tokens, G KV heads, D head size, C channels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError


def sizes(**sizes: int) -> None:
    """Each must be a whole number from 1 on."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PosexportError(f"{name} must be a whole number from 1 on, got {value!r}")


def channels(name: str, x: Tensor, width: int) -> None:
    """A tensor [B, T, C] of ``width`` channels."""
    if x.dim() != 3 or x.shape[-1] != width:
        raise PosexportError(f"{name} must be [batch, tokens, {width}], got {list(x.shape)}")


def mask(mask: Tensor | None, attended: Tensor, *, causal: bool, cached: bool = False) -> None:
    """1 and 0 for every token that is attended to, [B, S]; ``cached``: past tokens are among them."""
    if mask is None:
        return
    if mask.dim() != 2 or mask.is_floating_point():
        raise PosexportError(
            "attention_mask must be [batch, tokens attended to], integers or booleans, 1 for a token and 0 for "
            f"padding; got {mask.dtype} {list(mask.shape)}"
        )
    if torch.compiler.is_compiling():
        return
    batch, length = attended.shape[:2]
    if mask.shape[0] != batch or (mask.shape[1] < length if cached else mask.shape[1] != length):
        shape = f"[{batch}, past + {length}]" if cached else f"[{batch}, {length}]"
        raise PosexportError(f"attention_mask must be {shape}, got {list(mask.shape)}")
    if not causal or not _readable(mask):
        return
    # positions count the mask, distances count slots: with a gap they would disagree
    starts_BS = (mask != 0).to(torch.int8).diff(dim=1, prepend=mask.new_zeros(batch, 1, dtype=torch.int8)) == 1
    if bool((starts_BS.sum(1) > 1).any()):
        raise PosexportError(
            "attention_mask has padding between tokens of a row; pad before the first token or after the last"
        )


def length(encoding: Encoding, tokens: int) -> None:
    """At most as many tokens as the encoding has positions."""
    if torch.compiler.is_compiling() or encoding.limit is None or tokens <= encoding.limit:
        return
    longer = "max_positions" in encoding.parameters_given
    hint = f"; make more, settings={{'max_positions': {tokens}}}" if longer else ""
    raise PosexportError(f"the encoding {encoding.name} has {encoding.limit} positions, got {tokens} tokens{hint}")


def positions(ids: Tensor | Positions | None, x: Tensor) -> Positions:
    """The positions of the tokens of ``x``: ``ids``, or 0, 1, 2 ..."""
    if isinstance(ids, Positions):
        return ids
    counted = Positions.counted(x.shape[1], x.device)
    if ids is None:
        return counted
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise PosexportError(f"position_ids must be int64 [batch or 1, tokens], got {ids.dtype} {list(ids.shape)}")
    if not torch.compiler.is_compiling() and (ids.shape[1] != x.shape[1] or ids.shape[0] not in (1, x.shape[0])):
        raise PosexportError(f"position_ids must be [{x.shape[0]} or 1, {x.shape[1]}], got {list(ids.shape)}")
    return Positions(ids.to(torch.int64), counted.slots_T)


def consecutive(encoding: Encoding, ids: Tensor, mask: Tensor | None, x: Tensor) -> None:
    """An encoding of distances counts slots: positions that jump would be read wrongly."""
    positions(ids, x)
    if not _readable(ids) or {"scores", "values"}.isdisjoint(encoding.hooks) or ids.shape[1] < 2:
        return
    steps_BT = ids.diff(dim=1) == 1
    if mask is not None:
        steps_BT = steps_BT | (mask[:, 1:] == 0) | (mask[:, :-1] == 0)
    if not bool(steps_BT.all()):
        raise PosexportError(
            f"the encoding {encoding.name} measures distances between tokens that follow one another: each of "
            "position_ids must be one more than the one before"
        )


def same_rows(encoding: Encoding, ids: Tensor) -> None:
    """Distances to a context are computed once for the batch."""
    if not _readable(ids) or {"scores", "values"}.isdisjoint(encoding.hooks):
        return
    if not bool((ids == ids[:1]).all()) or not bool((ids[0].diff() == 1).all()):
        raise PosexportError(
            f"the encoding {encoding.name} measures distances to a context once for the batch: position_ids must be "
            "the same in all rows, each one more than the one before"
        )


def cache(past: Any, sizes: Sequence[int], mask: Tensor | None, new: int, *, static: bool) -> None:
    """Keys and values [B, G, slots, D], and a mask [B, S] that fits to them and ``new`` tokens."""
    batch, groups, size = sizes
    both = isinstance(past, tuple) and len(past) == 2 and all(isinstance(tensor, Tensor) for tensor in past)
    if both and torch.compiler.is_compiling():
        return
    if not both or any(
        tensor.dim() != 4 or (*tensor.shape[:2], tensor.shape[3]) != (batch, groups, size) for tensor in past
    ):
        shapes = [list(tensor.shape) for tensor in past] if both else type(past).__name__
        raise PosexportError(
            f"past must be (key, value), each [{batch}, {groups}, past tokens, {size}] (see new_cache), got {shapes}"
        )
    slots, total = past[0].shape[2], None if mask is None else mask.shape[1]
    if static and total is not None and total > slots:
        raise PosexportError(f"attention_mask has {total} tokens, the static KV cache {slots} slots; make a larger one")
    if not static and total not in (None, slots + new):
        raise PosexportError(f"attention_mask must be [{batch}, {slots} + {new}], past and new tokens, got {total}")


def _readable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
