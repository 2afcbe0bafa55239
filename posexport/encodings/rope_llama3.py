"""Rotary position embedding as in Llama 3.1: pairs of long wavelength interpolated, short ones kept, smooth between.

The formula is in the code released with the weights (see `posexport.encodings.frequencies.llama3`); Llama team, "The
Llama 3 Herd of Models" (arXiv:2407.21783), section 3.2, gives the base of 500000.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.llama3 import Llama3
from posexport.encodings.rope_base import Rotary
from posexport.ops.rotation import Layout


def oracle(
    x_BHTD: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    head_size: int,
    layout: str = "half",
    base: float = 10000.0,
    rotary_dim: int | None = None,
    factor: float = 8.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    max_positions: int = 8192,
) -> Array:
    """By wavelengths: the share of a frequency that is kept rises from 0 at L / low to 1 at L / high, in turns."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = rotary_dim or head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        theta = np.power(base, -2 * i / dim)
        wavelength = 2 * np.pi / theta
        kept = (max_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)
        angle_BT = pos_BT * theta * (kept + (1 - kept) / factor)
        turned = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope-llama3",
    cases=[
        {"head_size": 20, "max_positions": 300},
        {"head_size": 34, "base": 500000.0},
        {"head_size": 44, "factor": 2.5, "layout": "interleaved", "max_positions": 1000},
        {
            "head_size": 34,
            "rotary_dim": 24,
            "base": 500.0,
            "low_freq_factor": 3,
            "high_freq_factor": 50.0,
            "max_positions": 700,
        },
    ],
    source="Llama team 2024, arXiv:2407.21783, and the released code",
    rotate=oracle,
)
class RopeLlama3(Rotary):
    """Rotates queries and keys, pairs of long wavelength at frequencies divided by ``factor``; takes any length.

    ``max_positions``: the original length, in which pairs that are divided turn less than ``low_freq_factor`` times
    and pairs that are kept more than ``high_freq_factor`` times.
    """

    schedule_type = Llama3

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        rotary_dim: int | None = None,
        factor: float = 8.0,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        max_positions: int = 8192,
    ) -> None:
        schedule = Llama3(
            dim=head_size if rotary_dim is None else rotary_dim,
            base=base,
            factor=factor,
            low_freq_factor=low_freq_factor,
            high_freq_factor=high_freq_factor,
            max_positions=max_positions,
        )
        super().__init__(
            schedule,
            layout,
            head_size=head_size,
            base=base,
            rotary_dim=rotary_dim,
            factor=factor,
            low_freq_factor=low_freq_factor,
            high_freq_factor=high_freq_factor,
            max_positions=max_positions,
        )
