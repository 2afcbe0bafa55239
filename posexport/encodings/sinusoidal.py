"""Sines and cosines of the position at falling frequencies, added to the token embeddings.

Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.5. The half layout, all sines before all
cosines at the same frequencies, is Marian's. Not done: the scaling of embeddings by sqrt(hidden), which is the
model's business, and tensor2tensor's frequencies, whose exponent is divided by one less.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.encodings.base import Array, register
from posexport.encodings.joined import Joined, PositionVectors
from posexport.encodings.waves import Layout, check_layout, frequencies, waves
from posexport.errors import PosexportError


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    layout: str = "interleaved",
    base: float = 10000.0,
    joined: str = "sum",
) -> Array:
    """Channel by channel: PE(pos, 2i) = sin(pos / base^(2i / hidden)), PE(pos, 2i + 1) = cos of the same."""
    assert not params
    out = np.array(np.broadcast_to(x_BTC, (len(x_BTC), *x_BTC.shape[1:])))
    if joined == "concat":
        out = np.pad(out, [(0, 0), (0, 0), (0, hidden)])
    sines = (hidden + 1) // 2
    for channel in range(hidden):
        i, is_cosine = divmod(channel, 2)
        place = channel if layout == "interleaved" else i + sines * is_cosine
        angle_BT = pos_BT / np.power(base, 2 * i / hidden)
        out[..., place - hidden] += np.cos(angle_BT) if is_cosine else np.sin(angle_BT)
    return out


@register(
    "sinusoidal",
    cases=[
        {"hidden": 20},
        {"hidden": 7},
        {"hidden": 20, "layout": "half"},
        {"hidden": 9, "layout": "half", "base": 500.0},
        {"hidden": 1},
        {"hidden": 7, "joined": "concat"},
    ],
    source="Vaswani et al. 2017, arXiv:1706.03762, section 3.5",
    embed=oracle,
)
class Sinusoidal(PositionVectors):
    """Adds sines and cosines of the position to the embeddings; takes any length.

    ``layout``: sines and cosines in turn (``interleaved``) or all sines first (``half``); an odd ``hidden`` has one
    sine more. ``joined``: the vector is added to the token's (``sum``) or put beside it (``concat``). Positions stay
    int64 until the angle, which is float32 or wider; the sum is cast last.
    """

    def __init__(
        self, *, hidden: int, layout: Layout = "interleaved", base: float = 10000.0, joined: Joined = "sum"
    ) -> None:
        super().__init__(hidden=hidden, layout=layout, base=base, joined=joined)
        check_layout(self.name, layout)
        if not 1 < base < math.inf:
            raise PosexportError(f"{self.name}: base must be a finite number above 1, got {base!r}")
        self.layout = layout
        self.frequencies = frequencies(hidden, base)

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Sines and cosines of each position."""
        return waves(ids_BT, self.frequencies, self.hidden, self.layout, dtype)
