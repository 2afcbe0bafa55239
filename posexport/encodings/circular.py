"""Sines and cosines with a period in place of the base 10000, added to the token embeddings.

As tutorials for audio and time series write it: Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section
3.5, with another base. Despite its name it does not repeat after ``period`` positions, nor ever; the encoding that
does is `posexport.encodings.periodic`.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import AboveOne
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionVectors
from posexport.encodings.waves import frequencies
from posexport.graph.ops.waves import Layout, waves


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    period: float,
    layout: str = "interleaved",
    joined: str = "sum",
) -> Array:
    """The real and imaginary parts of exp(i pos / period^(2i / hidden)), imaginary first."""
    assert not params
    exponent_F = np.arange(0, hidden, 2) / hidden
    phasor_BTF = np.exp(1j * pos_BT[..., None] * np.exp(-np.log(period) * exponent_F))
    out = np.zeros((*pos_BT.shape, 2 * len(exponent_F)))
    if layout == "interleaved":
        out[..., 0::2], out[..., 1::2] = phasor_BTF.imag, phasor_BTF.real
    else:
        out[..., : len(exponent_F)], out[..., len(exponent_F) :] = phasor_BTF.imag, phasor_BTF.real
    vectors_BTC = np.broadcast_to(out[..., :hidden], x_BTC.shape)
    return x_BTC + vectors_BTC if joined == "sum" else np.concatenate([x_BTC, vectors_BTC], axis=2)


@register(
    "circular",
    cases=[
        {"hidden": 20, "period": 24.0},
        {"hidden": 7, "period": 365.25, "joined": "concat"},
        {"hidden": 9, "period": 24.0, "layout": "half"},
    ],
    source="tutorials; after Vaswani et al. 2017, arXiv:1706.03762, section 3.5",
    embed=oracle,
)
class Circular(PositionVectors):
    """Adds sines and cosines at ``period^(-2i / hidden)`` radians a position to the embeddings; takes any length.

    The waves' lengths run from 2 pi to 2 pi ``period`` positions, so nothing repeats after ``period`` positions (see
    ``circular-periodic``). ``layout`` and ``joined``: as in ``sinusoidal``.
    """

    def __init__(
        self, *, hidden: int, period: AboveOne = 24.0, layout: Layout = "interleaved", joined: Joined = "sum"
    ) -> None:
        super().__init__(hidden=hidden, period=period, layout=layout, joined=joined)
        self.layout = layout
        self.frequencies = frequencies(hidden, period)

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Sines and cosines of each position."""
        return waves(ids_BT, self.frequencies, self.hidden, self.layout, dtype)
