"""The KV cache of a decoder, dynamic or static, and whether keys are kept rotated.

Shape letters: B batch, G KV heads, P past tokens, M slots of a static cache, T new tokens, S past and new tokens, D
head size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.base.options.recipe import RotationName
from posexport.base.spec import CAPACITY, PAST, SEQUENCE, TOTAL
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.graph.ops.cache import read_slots, write_slots
from posexport.nn.rounded_cache import restored, rounded

#: keys and values of a layer, [B, G, S, D]
KeysAndValues = tuple[Tensor, Tensor]


class Cache(ABC):
    """A kind of cache. ``past_axis`` and ``present_axis`` name the axis of tokens or slots of inputs and outputs."""

    name: ClassVar[str]
    past_axis: ClassVar[str]
    present_axis: ClassVar[str]
    #: sizes to trace at
    trace_sizes: ClassVar[dict[str, int]]
    #: it has a capacity, and unused slots
    static: ClassVar[bool] = False

    @abstractmethod
    def mask(self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None) -> Tensor:
        """The mask over past and new tokens, [B, S]; all ones where there is none."""

    @abstractmethod
    def write(self, past: Tensor, new_BGTD: Tensor, queries: Positions) -> Tensor:
        """The cache with the new tokens' keys or values written at the slots of ``queries``."""

    @abstractmethod
    def read(self, present: Tensor, keys: Positions) -> Tensor:
        """Keys or values of the tokens at the slots of ``keys``, [B, G, S, D]."""


class DynamicCache(Cache):
    """Each call returns the past and the new tokens, concatenated."""

    name = "dynamic"
    past_axis, present_axis = PAST, TOTAL
    trace_sizes: ClassVar[dict[str, int]] = {SEQUENCE: 3, PAST: 5, TOTAL: 8}

    def mask(self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None) -> Tensor:
        length = ids_BT.shape[1] + (0 if past is None else past[0][0].shape[2])
        if mask_BS is None:
            return ids_BT.new_ones(ids_BT.shape[0], length)
        # the tracer gives its length a separate symbol
        return mask_BS[:, torch.arange(length, device=mask_BS.device)]

    def write(self, past: Tensor, new_BGTD: Tensor, queries: Positions) -> Tensor:
        return torch.cat((past, new_BGTD), 2)

    def read(self, present: Tensor, keys: Positions) -> Tensor:
        return present


class StaticCache(Cache):
    """A static KV cache of M slots, [B, G, M, D]: a runtime binds one buffer as past and present.

    The mask is over past and new tokens, so its length says how many slots are used. What other slots hold is not read.
    """

    name = "static"
    past_axis = present_axis = CAPACITY
    static = True
    trace_sizes: ClassVar[dict[str, int]] = {SEQUENCE: 3, TOTAL: 8, CAPACITY: 11}

    def mask(self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None) -> Tensor:
        """Nothing but the mask says how many tokens there are, so without one there is no past."""
        return torch.ones_like(ids_BT) if mask_BS is None else mask_BS

    def write(self, past: Tensor, new_BGTD: Tensor, queries: Positions) -> Tensor:
        """A copy of the past with the new tokens at their slots, which are consecutive; [B, G, M, D]."""
        return write_slots(past, new_BGTD, queries.slots_T)

    def read(self, present: Tensor, keys: Positions) -> Tensor:
        """The slots up to the last new token; the slots of ``keys`` are 0, 1, 2 ..."""
        return read_slots(present, keys.slots_T)


CACHES: dict[str, type[Cache]] = {cls.name: cls for cls in (DynamicCache, StaticCache)}


@dataclass(frozen=True)
class Caching:
    """A cache, and when keys are rotated.

    ``at-write``: once, before they are kept, by the frequencies of that call. ``at-read``: kept as they are and rotated
    in every call, all by that call's frequencies. The two differ where frequencies depend on the length.

    ``rounds``: keys and values are kept in 8 bits (`posexport.nn.rounded_cache`).
    """

    cache: Cache = field(default_factory=DynamicCache)
    rotation: RotationName = "at-write"
    rounds: bool = False


def widened(x: Tensor, size: int) -> Tensor:
    """``x`` with its channels zero-padded to ``size``, which the cache has for keys and for values.

    Products of queries and keys are the same with them; `narrowed` undoes it for the mean of values.
    """
    return x if x.shape[-1] == size else F.pad(x, (0, size - x.shape[-1]))


def narrowed(x: Tensor, size: int) -> Tensor:
    """Returns the first ``size`` channels."""
    return x if x.shape[-1] == size else x[..., :size]


@dataclass(frozen=True)
class Kept:
    """Keys and values that a call attends to, and what its KV cache holds after it.

    Attributes:
        keys: rotated, [B, G, S, D].
        values: [B, G, S, D].
        present: keys and values as the cache keeps them.
        buffers: the whole static cache, for a graph that can attend to it in place; None where there is none.
    """

    keys: Tensor
    values: Tensor
    present: KeysAndValues
    buffers: KeysAndValues | None


@dataclass(frozen=True)
class Reach:
    """Positions of the new tokens and of all keys (cached and new), and how keys and values are cached."""

    queries: Positions
    keys: Positions
    caching: Caching

    @staticmethod
    def by_mask(mask_BS: Tensor, new: int, caching: Caching, ids_BT: Tensor | None = None) -> "Reach":
        """Every row's kept tokens are 0, 1, 2 ...; padding before them gets 0. The last ``new`` are the queries.

        ``ids_BT``: the positions of the queries, if the call has them; negative ones are counted by the mask. Tokens of
        before move along with those that the mask keeps: padded ones have any position (transformers gives them 1).
        """
        ids_BS = (mask_BS.to(torch.int64).cumsum(1) - 1).clamp(min=0)
        slots_S = torch.arange(mask_BS.shape[1], dtype=torch.int64, device=mask_BS.device)
        slots_T = torch.arange(new, dtype=torch.int64, device=mask_BS.device) + (mask_BS.shape[1] - new)
        counted_BT = ids_BS.index_select(1, slots_T)
        if ids_BT is None:
            ids_BT = counted_BT
        else:
            ids_BT = torch.where(ids_BT < 0, counted_BT, ids_BT)
            nothing = torch.iinfo(torch.int64).min
            moved_BT = torch.where(mask_BS[:, slots_T] != 0, ids_BT - counted_BT, nothing)
            moved_B1 = moved_BT.amax(1, keepdim=True)
            ids_BS = ids_BS + torch.where(moved_B1 == nothing, 0, moved_B1)
        return Reach(Positions(ids_BT, slots_T), Positions(ids_BS, slots_S), caching)

    def kept(self, encoding: Encoding, k_BGTD: Tensor, v_BGTD: Tensor, past: KeysAndValues | None) -> Kept:
        """Rotate the new tokens' keys, append keys and values to ``past``, and return those attended to."""
        at_write = self.caching.rotation == "at-write"
        if at_write:
            k_BGTD = encoding.rotate(k_BGTD, self.queries, "key")
        dtype = k_BGTD.dtype
        if self.caching.rounds:
            k_BGTD, v_BGTD = rounded(k_BGTD, v_BGTD)
        present, buffers, read = (k_BGTD, v_BGTD), None, (k_BGTD, v_BGTD)
        if past is not None:
            cache = self.caching.cache
            present = (cache.write(past[0], k_BGTD, self.queries), cache.write(past[1], v_BGTD, self.queries))
            read = (cache.read(present[0], self.keys), cache.read(present[1], self.keys))
            buffers = present if cache.static and at_write and not self.caching.rounds else None
        k_BGSD, v_BGSD = (restored(x, dtype) for x in read) if self.caching.rounds else read
        if not at_write:
            k_BGSD = encoding.rotate(k_BGSD, self.keys, "key")
        return Kept(k_BGSD, v_BGSD, present, buffers)
