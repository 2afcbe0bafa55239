"""A learned vector for every position, in a table with leading rows that belong to no position.

Gehring et al., "Convolutional Sequence to Sequence Learning" (arXiv:1705.03122), section 3.1. The skipped rows follow
fairseq's tables, which start after the padding index: 2 in OPT (Zhang et al., arXiv:2205.01068, released
code).
"""

from collections.abc import Mapping

import numpy as np

from posexport.base.options.check import Count
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionTable


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    max_positions: int,
    hidden: int,
    offset: int,
    joined: str = "sum",
) -> Array:
    """One token at a time, in the table of real positions: e = w + p."""
    real = params["table"][-max_positions:]
    out = np.empty((len(x_BTC), pos_BT.shape[1], hidden if joined == "sum" else 2 * hidden))
    rows = np.broadcast_to(pos_BT, out.shape[:2])
    assert len(real) + offset == len(params["table"])
    for b, t in np.ndindex(rows.shape):
        word, place = x_BTC[b, t], real[rows[b, t]]
        out[b, t] = word + place if joined == "sum" else [*word, *place]
    return out


@register(
    "learned",
    cases=[
        {"max_positions": 2053, "hidden": 20, "offset": 2},
        {"max_positions": 300, "hidden": 7, "offset": 0},
        {"max_positions": 300, "hidden": 9, "offset": 5},
        {"max_positions": 300, "hidden": 5, "offset": 2, "joined": "concat"},
    ],
    source="Gehring et al. 2017, arXiv:1705.03122, section 3.1",
    embed=oracle,
)
class Learned(PositionTable):
    """Adds a learned vector per position to the embeddings, after skipping ``offset`` rows of the table.

    ``table`` is [max_positions + offset, hidden]. ``joined``: the vector is added to the token's (``sum``) or
    concatenated (``concat``). ``trained``: how many positions the table was trained for, where it has been stretched to
    ``max_positions`` since.
    """

    def __init__(
        self,
        *,
        max_positions: int = 512,
        hidden: int,
        offset: Count = 0,
        joined: Joined = "sum",
        trained: int | None = None,
    ) -> None:
        super().__init__(max_positions=max_positions, hidden=hidden, joined=joined, offset=offset, trained=trained)
