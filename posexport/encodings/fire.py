"""A small network of the distance, relative to how far back the query can look.

Li et al., "Functional Interpolation for Relative Positions Improves Long Context Transformers" (arXiv:2310.04418),
equations 5 to 7 and the listing of appendix C.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from posexport.base.options.check import Positive, Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.graph.ops.fire_scores import FIRE_SCORES

#: added to the normaliser in the paper's listing
EPS = 1e-6


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    width: int = 32,
    length: float = 512.0,
    c: float = 0.1,
) -> Array:
    """Row by row and query by query, the listing in NumPy."""
    assert c > 0, "only where training starts"
    c_learned, threshold = abs(float(params["c"])), abs(float(params["multiplier"]) * length)
    inner, inner_bias, outer, outer_bias = (
        params[f"{layer}.{kind}"] for layer in ("inner", "outer") for kind in ("weight", "bias")
    )
    assert inner.shape == (width, 1)
    out = np.zeros((len(qpos_BT), heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    for b, t in np.ndindex(qpos_BT.shape):
        i = float(qpos_BT[b, t])
        gap_S = np.abs(i - kpos_BS[b])
        ratio_S = np.log1p(c_learned * gap_S) / (np.log1p(c_learned * max(i, threshold)) + 1e-6)
        hidden_SU = np.clip(ratio_S[:, None] * inner[:, 0] + inner_bias, 0, None)
        out[b, :, t] = outer @ hidden_SU.T + outer_bias[:, None]
    return out


@register(
    "fire",
    cases=[
        {"heads": 5},
        {"heads": 3, "width": 7, "length": 64.0},
        {"heads": 2, "width": 5, "c": 1.0, "length": 6000.0},
    ],
    source="Li et al. 2024, arXiv:2310.04418, equation 7",
    scores=oracle,
)
class Fire(Encoding):
    """Adds ``f(psi(|i - j|) / psi(max(L, i)))`` to the scores, not scaled, psi(x) = log(1 + |c| x); takes any length.

    f is a network with one hidden layer of ``width`` rectifiers; every layer learns f, ``c`` and a ``multiplier``,
    which times ``length`` is L. The distance is absolute, as in the paper's listing: in an encoder, keys
    after the query are as far as keys before it, and, being no more than the sequence away, may lie beyond the ratio
    of 1 that a causal query never passes. Up to position L a score depends on the distance alone; past it, on the
    query's position too, so that FIRE is not invariant to shifts, and f is evaluated for every pair.

    Not done: the variant with one f for all layers, and randomised positions, which belong to training.
    """

    per_layer = True
    shift_invariant = False

    def __init__(self, *, heads: Size, width: Size = 32, length: Positive = 512.0, c: Positive = 0.1) -> None:
        super().__init__(heads=heads, width=width, length=length, c=c)
        self.length = length
        self.inner = nn.Linear(1, width)
        self.outer = nn.Linear(width, heads)
        self.c = nn.Parameter(torch.tensor(float(c)))
        self.multiplier = nn.Parameter(torch.tensor(1.0))

    @property
    def boundaries(self) -> list[int]:
        """The longest input with scores that depend on distances alone."""
        return [math.floor(abs(self.multiplier.item() * self.length)) + 1]

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """What the operator needs: psi of every distance, the normaliser of every query, the network's weights."""
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        c, threshold = self.c.to(wide).abs(), (self.multiplier.to(wide) * self.length).abs()
        lowest_1, distance_W = distances(queries, keys)
        psi_1W = torch.log(1 + c * distance_W.abs().to(wide))[None]
        place_GT = torch.maximum(queries.ids_BT.to(wide), threshold)
        normaliser_GT = torch.log(1 + c * place_GT) + EPS
        tensors = (
            self.outer.bias.to(q_BHTD.dtype),
            self.outer.weight.to(wide),
            self.inner.weight[:, 0].to(wide),
            self.inner.bias.to(wide),
            psi_1W,
            lowest_1,
            normaliser_GT,
            queries.slots_T[:1],
        )
        return Term(FIRE_SCORES, tensors, queries, keys)
