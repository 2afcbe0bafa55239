"""Where a decoder keeps the keys and values of past tokens, and whether keys are kept rotated.

Shape letters: B batch, G heads of keys and values, P past places, C places of a cache of fixed size, T new tokens, S
past and new tokens, D head size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from posexport.encodings.positions import Positions
from posexport.nn.places import first_places, scattered
from posexport.spec import CAPACITY, PAST, SEQUENCE, TOTAL

#: keys and values of a layer, [B, G, S, D]
KeysAndValues = tuple[Tensor, Tensor]
Rotate = Literal["at-write", "at-read"]


class Cache(ABC):
    """One way. ``past_axis`` and ``present_axis`` name the axis of places in what is taken and what is given."""

    name: ClassVar[str]
    past_axis: ClassVar[str]
    present_axis: ClassVar[str]
    #: sizes to trace at
    traced: ClassVar[dict[str, int]]
    #: it has a size from the start, and places that are free
    fixed: ClassVar[bool] = False

    @abstractmethod
    def mask(self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None) -> Tensor:
        """The mask over past and new tokens, [B, S]; all ones where none is given."""

    @abstractmethod
    def written(self, past: Tensor, new_BGTD: Tensor, queries: Positions) -> Tensor:
        """The cache with the new tokens' keys or values, which stand at the slots of ``queries``."""

    @abstractmethod
    def read(self, present: Tensor, keys: Positions) -> Tensor:
        """Keys or values of the tokens at the slots of ``keys``, [B, G, S, D]."""


class GrowingCache(Cache):
    """Each call gives the past and the new tokens, put together."""

    name = "dynamic"
    past_axis, present_axis = PAST, TOTAL
    traced: ClassVar[dict[str, int]] = {SEQUENCE: 3, PAST: 5, TOTAL: 8}

    def mask(self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None) -> Tensor:
        """As long as past and new are."""
        length = ids_BT.shape[1] + (0 if past is None else past[0][0].shape[2])
        if mask_BS is None:
            return ids_BT.new_ones(ids_BT.shape[0], length)
        # to a tracer its length is a size of its own
        return mask_BS[:, torch.arange(length, device=mask_BS.device)]

    def written(self, past: Tensor, new_BGTD: Tensor, queries: Positions) -> Tensor:
        """Past, then new; [B, G, S, D]."""
        del queries
        return torch.cat((past, new_BGTD), 2)

    def read(self, present: Tensor, keys: Positions) -> Tensor:
        del keys
        return present


class StaticCache(Cache):
    """Places for so many tokens from the start, [B, G, C, D]: a runtime binds one buffer as what is taken and given.

    The mask is over past and new tokens, so its length says how many places are taken. What other places hold is not
    read.
    """

    name = "static"
    past_axis = present_axis = CAPACITY
    fixed = True
    traced: ClassVar[dict[str, int]] = {SEQUENCE: 3, TOTAL: 8, CAPACITY: 11}

    def mask(self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None) -> Tensor:
        """As it is given: nothing else says how many tokens there are, so without one there is no past."""
        del past
        return torch.ones_like(ids_BT) if mask_BS is None else mask_BS

    def written(self, past: Tensor, new_BGTD: Tensor, queries: Positions) -> Tensor:
        """The new tokens at their slots; [B, G, C, D]."""
        return scattered(past, new_BGTD, queries.slots_T)

    def read(self, present: Tensor, keys: Positions) -> Tensor:
        """The places up to the last new token."""
        return first_places(present, keys.slots_T)


CACHES: dict[str, type[Cache]] = {cls.name: cls for cls in (GrowingCache, StaticCache)}


@dataclass(frozen=True)
class Caching:
    """A cache, and when keys are rotated.

    ``at-write``: once, before they are kept, by the frequencies of that call. ``at-read``: kept as they are and rotated
    in every call, all by that call's frequencies. The two differ where frequencies depend on the length.
    """

    cache: Cache = field(default_factory=GrowingCache)
    rotate: Rotate = "at-write"
