"""Learned vectors for some positions only, added to the token embeddings.

A sparse form of the table of positions of Gehring et al., "Convolutional Sequence to Sequence Learning"
(arXiv:1705.03122), section 3.1, as tutorials describe it: fewer rows than positions, or positions without a vector.
Not done: a choice of positions that depends on the input.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionVectors
from posexport.errors import PosexportError

Form = Literal["strided", "block", "subset"]


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    max_positions: int = 512,
    form: str = "strided",
    stride: int = 4,
    first: int = 1,
    positions: str = "0",
    joined: str = "sum",
) -> Array:
    """The rows written into a table of all positions, zeros where none is; then a plain look-up."""
    last = max(int(pos_BT.max()) + 1, max_positions)
    full = np.zeros((last + stride, hidden))
    rows = list(params["table"])
    for at in range(0, max_positions, stride) if form != "subset" else ():
        for step in range(first if form == "strided" else stride):
            full[at + step] = rows[0 if form == "block" else step]
        rows = rows[first if form == "strided" else 1 :]
    for text in positions.split(",") if form == "subset" else ():
        full[int(text) : int(text) + 1] = rows.pop(0)
    vectors_BTC = np.broadcast_to(full[pos_BT], x_BTC.shape)
    return x_BTC + vectors_BTC if joined == "sum" else np.concatenate([x_BTC, vectors_BTC], axis=2)


@register(
    "sparse",
    cases=[
        {"hidden": 20, "max_positions": 2100},
        {"hidden": 7, "max_positions": 301, "stride": 3, "first": 2, "joined": "concat"},
        {"hidden": 7, "max_positions": 301, "stride": 1},
        {"hidden": 20, "max_positions": 301, "form": "block", "stride": 7},
        {"hidden": 7, "form": "subset", "positions": "0,2,3,16,2045,4103,4100"},
    ],
    source="tutorials; after Gehring et al. 2017, arXiv:1705.03122, section 3.1",
    embed=oracle,
)
class Sparse(PositionVectors):
    """Adds learned vectors to the embeddings at some positions, or one vector to a whole block of positions.

    ``form``: ``strided``: the ``first`` positions of every ``stride`` have a vector each, the others none. ``block``:
    ``stride`` neighbours share a vector, E[floor(p / stride)]. ``subset``: the listed ``positions`` ("0,1,5") have a
    vector each, all others none. ``table`` has a row for every vector, in the order of positions or of the list. Both
    former are limited to ``max_positions``; ``subset`` takes any length. ``joined``: as in ``sinusoidal``.
    """

    def __init__(
        self,
        *,
        hidden: int,
        max_positions: Size = 512,
        form: Form = "strided",
        stride: Size = 4,
        first: Size = 1,
        positions: str = "0",
        joined: Joined = "sum",
    ) -> None:
        super().__init__(
            hidden=hidden,
            max_positions=max_positions,
            form=form,
            stride=stride,
            first=first,
            positions=positions,
            joined=joined,
        )
        if first > stride:
            raise PosexportError(f"{self.name}: first must be at most stride={stride}, got {first}")
        self.max_positions = max_positions
        self.form = form
        self.stride = stride
        self.first = first if form == "strided" else 1
        self.listed = self._parsed(positions) if form == "subset" else []
        blocks = -(-max_positions // stride)
        self.table = self._drawn(len(self.listed) or blocks * self.first, hidden)

    def _parsed(self, text: str) -> list[int]:
        parts = [number.strip() for number in text.split(",")]
        if not all(number.isdecimal() for number in parts) or len({int(number) for number in parts}) < len(parts):
            raise PosexportError(f"{self.name}: positions must be different whole numbers like 0,1,5, got {text!r}")
        return [int(number) for number in parts]

    @property
    def trained_length(self) -> int | None:
        """``max_positions``; None for a subset, which says of every position whether it has a vector."""
        return None if self.listed else self.max_positions

    @property
    def boundaries(self) -> list[int]:
        """The end of the first block and of the table; the first and the last input that hold the subset's last."""
        if self.listed:
            return [max(self.listed) + 1]
        return sorted({min(self.stride, self.max_positions), self.max_positions})

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Each position's vector, or zeros."""
        if self.listed:
            # a product with 0 and 1: any integer is accepted, and only listed ones are looked up
            listed_R = torch.tensor(self.listed, device=ids_BT.device)
            return (ids_BT[..., None] == listed_R).to(self.table.dtype) @ self.table
        step_BT = torch.remainder(ids_BT, self.stride)
        # the quotient of a multiple: floor and truncation agree
        block_BT = torch.div(ids_BT - step_BT, self.stride, rounding_mode="floor")
        if self.form == "block":
            return self.table[block_BT]
        row_BT = block_BT * self.first + step_BT.clamp(max=self.first - 1)
        return torch.where((step_BT < self.first)[..., None], self.table[row_BT], 0)
