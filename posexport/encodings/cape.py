"""Sines and cosines of a continuous position, added to the token embeddings.

Likhomanenko et al., "CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings"
(arXiv:2106.03143), section 4, and the code released with it (one dimension). At inference positions are not augmented:
the random global shift, local shifts and global scaling belong to training, and no random number is in the exported
graph.

Positions are ``(p - centre) * step``: ``step`` is the distance between tokens in the unit of training (seconds a frame,
for speech); ``centre`` is the normalisation that subtracts the mean position, for inputs of one known length.
Not done: the mean of every row's real tokens, which needs the padding mask, and that is not the encoding's business;
the scaling of embeddings by sqrt(hidden), which is the model's.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Positive
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionVectors
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError
from posexport.graph.ops.waves import waves


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    step: float = 1.0,
    centre: float = 0.0,
    frequency_scale: float = 1.0,
    joined: str = "sum",
) -> Array:
    """The released form: one sine, the cosines' channels a quarter turn ahead."""
    assert not params
    channel_C = np.arange(hidden)
    frequency_C = frequency_scale * np.exp(-2 * np.floor(channel_C / 2) * np.log(1e4) / hidden)
    place_BT1 = step * pos_BT[..., None] - step * centre
    vectors_BTC = np.broadcast_to(np.sin(place_BT1 * frequency_C + np.pi / 2 * (channel_C % 2)), x_BTC.shape)
    return x_BTC + vectors_BTC if joined == "sum" else np.concatenate([x_BTC, vectors_BTC], axis=2)


@register(
    "cape",
    cases=[
        {"hidden": 20},
        {"hidden": 7, "step": 0.03, "frequency_scale": 30.0, "joined": "concat"},
        {"hidden": 9, "centre": 149.5, "step": 0.5},
    ],
    source="Likhomanenko et al. 2021, arXiv:2106.03143, section 4",
    embed=oracle,
)
class Cape(PositionVectors):
    """Adds sines and cosines of the continuous position ``(p - centre) * step`` to the embeddings; takes any length.

    ``frequency_scale`` multiplies all frequencies. Positions stay int64 until the centre is subtracted, in float32 or
    wider. ``joined``: as in ``sinusoidal``.
    """

    def __init__(
        self,
        *,
        hidden: int,
        step: Positive = 1.0,
        centre: float = 0.0,
        frequency_scale: Positive = 1.0,
        joined: Joined = "sum",
    ) -> None:
        super().__init__(hidden=hidden, step=step, centre=centre, frequency_scale=frequency_scale, joined=joined)
        if not math.isfinite(centre):
            raise PosexportError(f"{self.name}: centre must be a finite number, got {centre!r}")
        self.step = step
        self.centre = centre
        self.frequencies = [frequency_scale * frequency for frequency in frequencies(hidden)]

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Sines and cosines of each position."""
        wide = torch.promote_types(dtype, torch.float32)
        return waves((ids_BT.to(wide) - self.centre) * self.step, self.frequencies, self.hidden, "interleaved", dtype)
