"""A vector for every phase of a period, added to the token embeddings: position p and p + period get the same.

Two forms. ``sine``: the harmonics of the period, the truncated Fourier series of any periodic function, as calendar
features of time series are encoded (Hyndman and Athanasopoulos, "Forecasting: Principles and Practice", 3rd ed.,
section 7.4). ``table``: a learned vector per phase, as time-series transformers embed the hour of the day (Zhou et al.,
"Informer", arXiv:2012.07436, appendix B). Not done: several periods in one encoding; join two models' inputs for that.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.base.options.check import FromTwo
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import Joined, PositionVectors

Form = Literal["sine", "table"]


def oracle(
    x_BTC: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    period: int,
    form: str = "sine",
    joined: str = "sum",
) -> Array:
    """One phase at a time: every position ``phase`` past a whole number of periods gets the same vector."""
    vectors_BTC = np.zeros(x_BTC.shape)
    for phase in range(period):
        if form == "table":
            vector = params["table"][phase]
        else:
            harmonics = [np.exp(2j * np.pi * k * phase / period) for k in range(1, hidden + 1)]
            vector = np.array([value for wave in harmonics for value in (wave.imag, wave.real)][:hidden])
        here_BT = np.floor((pos_BT - phase) / period) * period == pos_BT - phase
        vectors_BTC += here_BT[..., None] * vector
    return x_BTC + vectors_BTC if joined == "sum" else np.concatenate([x_BTC, vectors_BTC], axis=2)


@register(
    "circular-periodic",
    cases=[
        {"hidden": 20, "period": 24},
        {"hidden": 7, "period": 61, "joined": "concat"},
        {"hidden": 20, "period": 24, "form": "table"},
        {"hidden": 7, "period": 301, "form": "table", "joined": "concat"},
        {"hidden": 5, "period": 2},
    ],
    source="Zhou et al. 2021, arXiv:2012.07436, appendix B (table); Fourier series (sine)",
    embed=oracle,
)
class CircularPeriodic(PositionVectors):
    """Adds a vector of the position modulo ``period`` to the embeddings, the same one period on; takes any length.

    ``form``: ``sine`` has sin(2 pi k p / period) and cos(the same) at channels 2k - 2 and 2k - 1, k = 1, 2 ...;
    harmonics above half the period repeat lower ones. ``table`` is [period, hidden], learned. Positions are reduced as
    integers, negative ones too (-1 is the period's last phase), so that far positions are as exact as near ones.
    ``joined``: as in ``sinusoidal``.
    """

    def __init__(
        self,
        *,
        hidden: int,
        period: FromTwo = 24,
        form: Form = "sine",
        joined: Joined = "sum",
    ) -> None:
        super().__init__(hidden=hidden, period=period, form=form, joined=joined)
        self.period = period
        self.table = self._drawn(period, hidden) if form == "table" else None

    @property
    def boundaries(self) -> list[int]:
        """The longest input in which no vector comes back."""
        return [self.period]

    def vectors(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """The vector of each position's phase."""
        phase_BT = torch.remainder(ids_BT, self.period)
        if self.table is not None:
            return F.embedding(phase_BT, self.table)
        wide = torch.promote_types(dtype, torch.float32)
        harmonic_F = 1 + torch.arange((self.hidden + 1) // 2, device=ids_BT.device)
        angle_BTF = torch.remainder(phase_BT[..., None] * harmonic_F, self.period).to(wide) * (
            2 * math.pi / self.period
        )
        return torch.stack((angle_BTF.sin(), angle_BTF.cos()), -1).flatten(-2)[..., : self.hidden]
