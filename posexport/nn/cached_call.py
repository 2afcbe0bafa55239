"""One call of a decoder whose attention layers share a KV cache that their callers know nothing of.

A user's ``forward(input_ids, attention_mask)`` calls `posexport.nn.Attention` layer by layer. Inside `cached_call` the
layers take positions, mask and the past from here, in the order in which they are called, and leave what the cache
holds then; a model needs no cache among its own arguments. `posexport.modules.own_decoder` opens the block.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.nn.caching import KeysAndValues, Reach
from posexport.nn.calling import carried, carrying


class NotCachedError(PosexportError):
    """A layer that is no part of a decoder with a cache was called in one."""


@dataclass
class CachedCall:
    """What the layers of one call share.

    Attributes:
        at: positions of the new tokens and of all, and the kind of cache.
        mask_BS: 1 for each token, past and new.
        past: keys and values of every layer, in the order of calls; None: nothing was read yet.
        layers: the layers that were called, in order.
        present: what the cache of each of these holds then.
    """

    at: Reach
    mask_BS: Tensor
    past: Sequence[KeysAndValues] | None
    layers: list[nn.Module] = field(default_factory=list)
    present: list[KeysAndValues] = field(default_factory=list)

    def past_of(self, layer: nn.Module) -> KeysAndValues | None:
        """Keys and values of the past for the next call of a layer."""
        index = len(self.layers)
        self.layers.append(layer)
        if self.past is None:
            return None
        if index >= len(self.past):
            raise PosexportError(
                f"forward calls more posexport.nn.Attention layers than the {len(self.past)} of its first call; it "
                "must call the same ones for every input"
            )
        return self.past[index]

    def check(self, name: str, mask: Tensor | None, position_ids: "Tensor | Positions | None") -> None:
        """What a caller hands on must say what the call says; values are looked at outside of traces only."""
        if torch.compiler.is_compiling():
            return
        new_BT = self.mask_BS[:, -self.at.queries.slots_T.shape[0] :]
        if mask is not None and not _same(mask != 0, new_BT != 0):
            raise PosexportError(
                f"{name} got another attention_mask than forward did; a decoder with a KV cache must hand its own on "
                "unchanged"
            )
        ids_BT = position_ids.ids_BT if isinstance(position_ids, Positions) else position_ids
        if ids_BT is None:
            return
        real_BT, own_BT = new_BT != 0, self.at.queries.ids_BT
        if ids_BT.shape[-1] != own_BT.shape[-1] or not _same(ids_BT.expand_as(own_BT)[real_BT], own_BT[real_BT]):
            raise PosexportError(
                f"{name} got other position_ids than the tokens have; let forward take position_ids and hand them on, "
                "or leave them out"
            )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def current() -> CachedCall | None:
    """The call that is being made, if it has a cache of this kind."""
    return carried(CachedCall)


def cached_call(call: CachedCall) -> AbstractContextManager[CachedCall]:
    """Every `posexport.nn.Attention` and `posexport.nn.InputEncoding` that is called inside takes part in ``call``."""
    return carrying(call, CachedCall)
