"""Base of encodings with a vector for every position, which is added to the token's or concatenated with it."""

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from posexport.encodings.encoding import Encoding, Value
from posexport.encodings.positions import Positions
from posexport.options.values import Size

Joined = Literal["sum", "concat"]


class PositionVectors(Encoding):
    """A vector of width ``hidden`` for every position, added to the token's (``sum``) or concatenated (``concat``)."""

    shift_invariant = False

    def __init__(self, *, hidden: Size, joined: Joined, **settings: Value) -> None:
        """``others``: further arguments of the subclass."""
        super().__init__(hidden=hidden, joined=joined, **settings)
        self.hidden = hidden
        self.joined = joined

    @abstractmethod
    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """The vectors of int64 positions, [B or 1, T, hidden], in ``dtype`` or wider."""

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """``x_BTC`` with each position's vector; a sum is computed in the wider of the two types and rounded once."""
        vectors_BTC = self.vectors(positions.ids_BT, x_BTC.dtype)
        if self.joined == "sum":
            return (x_BTC + vectors_BTC).to(x_BTC.dtype)
        return torch.cat([x_BTC, vectors_BTC.to(x_BTC.dtype).expand(x_BTC.shape[0], -1, -1)], -1)

    @property
    def added_width(self) -> int:
        """The vector's width, where it is not added."""
        return self.hidden if self.joined == "concat" else 0
