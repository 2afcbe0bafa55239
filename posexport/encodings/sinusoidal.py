"""Sines and cosines of the position at falling frequencies, added to the token embeddings.

Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.5. The half layout, all sines before all
cosines at the same frequencies, is Marian's. tensor2tensor's timescales (Vaswani et al., arXiv:1803.07416, released
code), which fairseq took over, divide the exponent by one less, so that the last frequency is 1 / base; fairseq's rows
start after the padding index. Not done: the scaling of embeddings by sqrt(hidden), which is the model's business.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.base.options.check import AboveOne, Count
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionVectors
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError
from posexport.graph.ops.waves import Layout, waves

Timescales = Literal["transformer", "tensor2tensor"]


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    layout: str = "interleaved",
    base: float = 10000.0,
    joined: str = "sum",
    timescales: str = "transformer",
    offset: int = 0,
) -> Array:
    """Channel by channel: PE(pos, 2i) = sin(pos / base^(2i / hidden)), PE(pos, 2i + 1) = cos of the same.

    Of tensor2tensor: PE(pos, 2i) = sin(pos exp(-i ln(base) / (hidden / 2 - 1))), and zero in an odd last channel.
    """
    assert not params
    even = timescales == "tensor2tensor"
    out = np.array(np.broadcast_to(x_BTC, (len(x_BTC), *x_BTC.shape[1:])))
    if joined == "concat":
        out = np.pad(out, [(0, 0), (0, 0), (0, hidden)])
    sines = hidden // 2 if even else (hidden + 1) // 2
    for channel in range(2 * sines if even else hidden):
        i, is_cosine = divmod(channel, 2)
        place = channel if layout == "interleaved" else i + sines * is_cosine
        slower = np.exp(i * np.log(base) / (sines - 1)) if even else np.power(base, 2 * i / hidden)
        angle_BT = (pos_BT + offset) / slower
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
        {"hidden": 20, "layout": "half", "timescales": "tensor2tensor", "offset": 2},
        {"hidden": 9, "timescales": "tensor2tensor", "base": 300.0},
    ],
    source="Vaswani et al. 2017, arXiv:1706.03762, section 3.5",
    embed=oracle,
)
class Sinusoidal(PositionVectors):
    """Adds sines and cosines of the position to the embeddings; takes any length.

    ``layout``: sines and cosines in turn (``interleaved``) or all sines first (``half``); an odd ``hidden`` has one
    sine more. ``joined``: the vector is added to the token's (``sum``) or concatenated (``concat``).
    ``timescales``: frequency i of n is ``base^(-i / n)`` (``transformer``), or ``base^(-i / (n - 1))``
    (``tensor2tensor``; an odd ``hidden`` ends in a zero). ``offset``: is added to every position.
    Positions stay int64 until the angle, which is float32 or wider; the sum is cast last.
    """

    def __init__(
        self,
        *,
        hidden: int,
        layout: Layout = "interleaved",
        base: AboveOne = 10000.0,
        joined: Joined = "sum",
        timescales: Timescales = "transformer",
        offset: Count = 0,
    ) -> None:
        super().__init__(hidden=hidden, layout=layout, base=base, joined=joined, timescales=timescales, offset=offset)
        if timescales == "tensor2tensor" and hidden < 4:
            raise PosexportError(f"{self.name}: hidden must be at least 4 with timescales=tensor2tensor, got {hidden}")
        self.layout = layout
        self.offset = offset
        pairs = hidden // 2
        self.frequencies = (
            frequencies(hidden, base)
            if timescales == "transformer"
            else [base ** (-i / (pairs - 1)) for i in range(pairs)]
        )

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Sines and cosines of each position."""
        size = min(self.hidden, 2 * len(self.frequencies))
        vectors_BTC = waves(ids_BT + self.offset, self.frequencies, size, self.layout, dtype)
        return F.pad(vectors_BTC, (0, self.hidden - size)) if size < self.hidden else vectors_BTC
