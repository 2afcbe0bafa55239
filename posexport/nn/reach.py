"""What the new tokens of a call may attend to: positions of queries and keys, and the KV cache between them.

Shape letters: B batch, G KV heads, T new tokens, S past and new tokens, D head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.nn.caching import Caching, KeysAndValues


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
        counted_BT = ids_BS[:, slots_T]
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
        present, buffers, read = (k_BGTD, v_BGTD), None, (k_BGTD, v_BGTD)
        if past is not None:
            cache = self.caching.cache
            present = (cache.write(past[0], k_BGTD, self.queries), cache.write(past[1], v_BGTD, self.queries))
            read = (cache.read(present[0], self.keys), cache.read(present[1], self.keys))
            buffers = present if cache.static and at_write else None
        k_BGSD, v_BGSD = read
        if not at_write:
            k_BGSD = encoding.rotate(k_BGSD, self.keys, "key")
        return Kept(k_BGSD, v_BGSD, present, buffers)
