"""The inner product of sinusoidal encodings as a penalty on distance, compressed per head.

Chi, Fan, Rudnicky, Ramadge, "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis"
(arXiv:2212.10356), section 5 and its listing: heads have the compression ratios 8 h / H, h from 1 to H.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import AboveOne, FromTwo, Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.errors import PosexportError
from posexport.graph.ops.distance_scores import DISTANCE_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    size: int = 128,
    base: float = 10000.0,
) -> Array:
    """The sinusoidal vectors themselves, and their inner products; positions counted from the call's first key."""
    assert not params
    first = kpos_BS[0, 0]
    i = np.arange(size // 2)

    def vectors(positions: Array) -> Array:
        angle = (positions - first)[:, None] / base ** (2 * i / size)
        return np.concatenate([np.sin(angle), np.cos(angle)], -1)

    products_TS = vectors(qpos_BT[0]) @ vectors(kpos_BS[0]).T
    assert products_TS.shape == (q_BHTD.shape[2], k_BHSD.shape[2])
    ratio = np.arange(1, heads + 1) * 8 / heads
    return np.asarray(products_TS[None, None] / ratio[None, :, None, None])


@register(
    "sandwich",
    cases=[{"heads": 5}, {"heads": 12, "size": 64}, {"heads": 3, "size": 2}, {"heads": 8, "size": 34, "base": 500.0}],
    source="Chi et al. 2023, arXiv:2212.10356, section 5",
    scores=oracle,
)
class Sandwich(Encoding):
    """Adds ``sum_k cos((i - j) / base^(2k / size)) * H / (8 h)`` to the scores of head h, not scaled; takes any length.

    ``size`` is the width of the sinusoidal vectors in these inner products (128 in the paper, whatever the
    model's). Nothing is learned. Distances stay int64 until the angle, which is float32 or wider; the sum is cast last.
    """

    def __init__(self, *, heads: Size, size: FromTwo = 128, base: AboveOne = 10000.0) -> None:
        super().__init__(heads=heads, size=size, base=base)
        if size % 2:
            raise PosexportError(f"{self.name}: size must be even, a sine and a cosine for every frequency, got {size}")
        # Python floats: module.half() cannot round them
        self.frequencies = [base ** (-2 * k / size) for k in range(size // 2)]
        self.ratios = [8 * (head + 1) / heads for head in range(heads)]

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The cosines' sum of every distance."""
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        lowest_1, distance_W = distances(queries, keys)
        frequency_K1 = torch.tensor(self.frequencies, dtype=wide, device=q_BHTD.device)[:, None]
        ratio_H1 = torch.tensor(self.ratios, dtype=wide, device=q_BHTD.device)[:, None]
        sum_W = (distance_W.to(wide) * frequency_K1).cos().sum(0)
        return Term(DISTANCE_SCORES, ((sum_W / ratio_H1).to(q_BHTD.dtype), lowest_1), queries, keys)
