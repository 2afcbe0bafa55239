"""A learned vector for every position, added to the token embeddings.

Devlin et al., "BERT" (arXiv:1810.04805), section 3, "Input/Output Representations", and the code released with it.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionTable


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    max_positions: int,
    hidden: int,
    joined: str = "sum",
) -> Array:
    """The table met by one-hot vectors, as the input embedding is defined: x + onehot(position) E."""
    onehot_BTM = np.equal(pos_BT[..., None], np.arange(max_positions)).astype(np.float64)
    vectors_BTC = (onehot_BTM @ params["table"]).reshape(*pos_BT.shape, hidden)
    if joined == "sum":
        return x_BTC + vectors_BTC
    return np.concatenate([x_BTC, np.broadcast_to(vectors_BTC, x_BTC.shape)], -1)


@register(
    "absolute",
    cases=[{"max_positions": 2053, "hidden": 20}, {"max_positions": 300, "hidden": 7, "joined": "concat"}],
    source="Devlin et al. 2019, arXiv:1810.04805, section 3",
    embed=oracle,
)
class Absolute(PositionTable):
    """Adds a learned vector per position to the embeddings; no longer input than the table.

    ``joined``: the vector is added to the token's (``sum``) or concatenated (``concat``). ``trained``: how many
    positions the table was trained for, where it has been stretched to ``max_positions`` since.
    """

    def __init__(
        self, *, max_positions: int = 512, hidden: int, joined: Joined = "sum", trained: int | None = None
    ) -> None:
        super().__init__(max_positions=max_positions, hidden=hidden, joined=joined, trained=trained)
