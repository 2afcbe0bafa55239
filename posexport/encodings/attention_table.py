"""A position's vector as an attention over a learned table, added to the token embeddings.

Tutorials name attention-based positions without a formula. This one is the look-up of Vaswani et al., "Attention Is All
You Need" (arXiv:1706.03762), section 3.2.1, with the sinusoids of section 3.5 as queries and a learned table as keys
and values: ``softmax(s(p) K^T / sqrt(hidden)) V``. Not done: queries that depend on the tokens (see ``cope`` for
positions that do).
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionVectors
from posexport.encodings.waves import frequencies
from posexport.graph.ops.waves import waves


def oracle(
    x_BTC: Array, pos_BT: Array, *, params: Mapping[str, Array], hidden: int, rows: int = 32, joined: str = "sum"
) -> Array:
    """One row of the table at a time: its weight is exp(s(p) . k / sqrt(hidden)), the sum divided by all weights."""
    weighted, weights = np.zeros(x_BTC.shape), np.zeros((*pos_BT.shape, 1))
    for row in range(rows):
        logit_BT = np.zeros(pos_BT.shape)
        for channel in range(hidden):
            turn = pos_BT / np.power(10000.0, (channel - channel % 2) / hidden)
            logit_BT += params["key_table"][row, channel] * (np.cos(turn) if channel % 2 else np.sin(turn))
        weight_BT1 = np.exp(logit_BT / np.sqrt(hidden))[..., None]
        weighted, weights = weighted + weight_BT1 * params["value_table"][row], weights + weight_BT1
    vectors_BTC = weighted / weights
    return x_BTC + vectors_BTC if joined == "sum" else np.concatenate([x_BTC, vectors_BTC], axis=2)


@register(
    "attention-table",
    cases=[{"hidden": 20}, {"hidden": 7, "rows": 11, "joined": "concat"}, {"hidden": 9, "rows": 1}],
    source="tutorials; after Vaswani et al. 2017, arXiv:1706.03762, sections 3.2.1 and 3.5",
    embed=oracle,
)
class AttentionTable(PositionVectors):
    """Adds ``softmax(s(p) K^T / sqrt(hidden)) V`` to the embeddings, s(p) sinusoids, K and V learned; any length.

    ``key_table`` and ``value_table`` are [rows, hidden]. Angle, softmax and sum are float32 or wider, cast last.
    ``joined``: as in ``sinusoidal``.
    """

    def __init__(self, *, hidden: int, rows: Size = 32, joined: Joined = "sum") -> None:
        super().__init__(hidden=hidden, rows=rows, joined=joined)
        self.frequencies = frequencies(hidden)
        self.key_table = self._drawn(rows, hidden)
        self.value_table = self._drawn(rows, hidden)

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """The table's values, weighted by how much each key is like the position's sinusoids."""
        query_BTC = waves(ids_BT, self.frequencies, self.hidden, "interleaved", dtype)
        logits_BTR = query_BTC @ self.key_table.to(query_BTC.dtype).mT * self.hidden**-0.5
        weights_BTR: Tensor = logits_BTR.softmax(-1)
        return weights_BTR @ self.value_table.to(query_BTC.dtype)
