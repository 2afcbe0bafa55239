"""Sines and cosines of the position at falling frequencies, added to the token embeddings.

Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.5. The half layout, all sines before all
cosines at the same frequencies, is Marian's. Not done: the scaling of embeddings by sqrt(hidden), which is the
model's business, and tensor2tensor's frequencies, whose exponent is divided by one less.
"""

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from posexport.encodings.base import Array, Encoding, register
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError

Layout = Literal["interleaved", "half"]


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    layout: str = "interleaved",
    base: float = 10000.0,
) -> Array:
    """Channel by channel: PE(pos, 2i) = sin(pos / base^(2i / hidden)), PE(pos, 2i + 1) = cos of the same."""
    assert not params
    out = np.array(np.broadcast_to(x_BTC, (len(x_BTC), *x_BTC.shape[1:])))
    sines = (hidden + 1) // 2
    for channel in range(hidden):
        i, is_cosine = divmod(channel, 2)
        place = channel if layout == "interleaved" else i + sines * is_cosine
        angle_BT = pos_BT / np.power(base, 2 * i / hidden)
        out[..., place] += np.cos(angle_BT) if is_cosine else np.sin(angle_BT)
    return out


@register(
    "sinusoidal",
    cases=[
        {"hidden": 20},
        {"hidden": 7},
        {"hidden": 20, "layout": "half"},
        {"hidden": 9, "layout": "half", "base": 500.0},
        {"hidden": 1},
    ],
    source="Vaswani et al. 2017, arXiv:1706.03762, section 3.5",
    embed=oracle,
)
class Sinusoidal(Encoding):
    """Adds sines and cosines of the position to the embeddings; takes any length.

    ``layout``: sines and cosines in turn (``interleaved``) or all sines first (``half``); an odd ``hidden`` has one
    sine more. Positions stay int64 until the angle, which is float32 or wider; the sum is cast last.
    """

    shift_invariant = False

    def __init__(self, *, hidden: int, layout: Layout = "interleaved", base: float = 10000.0) -> None:
        super().__init__(hidden=hidden, layout=layout, base=base)
        self._at_least(1, hidden=hidden)
        if layout not in get_args(Layout):
            raise PosexportError(f"{self.name}: layout must be interleaved or half, got {layout!r}")
        if not 1 < base < math.inf:
            raise PosexportError(f"{self.name}: base must be a finite number above 1, got {base!r}")
        self.hidden = hidden
        self.layout = layout
        # Python floats: module.half() cannot round them
        self.frequencies = [base ** (-2 * i / hidden) for i in range((hidden + 1) // 2)]

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """``x_BTC`` with the sines and cosines of each token's position added."""
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        frequency_F = torch.tensor(self.frequencies, dtype=wide, device=x_BTC.device)
        angle_BTF = positions.ids_BT[..., None].to(wide) * frequency_F
        waves = (angle_BTF.sin(), angle_BTF.cos())
        table_BTC = torch.stack(waves, -1).flatten(-2) if self.layout == "interleaved" else torch.cat(waves, -1)
        return (x_BTC + table_BTC[..., : self.hidden]).to(x_BTC.dtype)
