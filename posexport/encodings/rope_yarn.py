"""Rotary position embedding by YaRN: slow pairs interpolated, fast ones kept, queries and keys a little longer.

Peng et al., "YaRN" (arXiv:2309.00071), section 3, as released; `posexport.encodings.frequencies.yarn` says where the
paper differs. Fixed: "dynamic YaRN" is not done.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.yarn import Yarn
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
    factor: float = 4.0,
    max_positions: int = 2048,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention: float | None = None,
) -> Array:
    """Kept and interpolated frequencies mixed by a ramp over the pairs whose wavelengths are L / beta."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = rotary_dim or head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    # a pair turns beta times within L positions where base^(2i / dim) = L / (2 pi beta)
    ends = np.log(max_positions / (2 * np.pi * np.array([beta_fast, beta_slow]))) / np.log(base) * dim / 2
    if truncate:
        ends = np.array([np.floor(ends[0]), np.ceil(ends[1])])
    ends = np.clip(ends, 0, dim - 1)
    ends[1] += 0.001 * (ends[0] == ends[1])
    length = 0.1 * np.log(factor) + 1 if attention is None else attention
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        theta = np.power(base, -2 * i / dim)
        kept = np.interp(i, ends, [1.0, 0.0])
        angle_BT = pos_BT * (kept * theta + (1 - kept) * theta / factor)
        turned = length * (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope-yarn",
    cases=[
        {"head_size": 20, "max_positions": 300},
        {"head_size": 44, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 64, "truncate": False, "factor": 32, "max_positions": 4096, "base": 150000.0},
        {"head_size": 34, "rotary_dim": 24, "base": 500.0, "beta_fast": 20.0, "beta_slow": 2.0, "attention": 1.5},
        # a base so small that the ramp would end behind the last pair
        {"head_size": 24, "base": 15.0},
        # both ends of the ramp fall on one place, just before the fourth pair
        {"head_size": 12, "beta_fast": 3.261996, "beta_slow": 3.261996, "truncate": False},
    ],
    source="Peng et al. 2023, arXiv:2309.00071, section 3",
    rotate=oracle,
)
class RopeYarn(Rotary):
    """Rotates queries and keys, slow pairs at frequencies divided by ``factor``; takes any length.

    ``max_positions``: the original length, in which pairs that are kept turn more than ``beta_fast`` times and pairs
    that are divided less than ``beta_slow`` times. ``attention``: on queries and keys; 0.1 ln(factor) + 1 where None.
    """

    schedule_type = Yarn

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        rotary_dim: int | None = None,
        factor: float = 4.0,
        max_positions: int = 2048,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        truncate: bool = True,
        attention: float | None = None,
    ) -> None:
        schedule = Yarn(
            dim=head_size if rotary_dim is None else rotary_dim,
            base=base,
            factor=factor,
            max_positions=max_positions,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            truncate=truncate,
            attention=attention,
        )
        super().__init__(
            schedule,
            layout,
            head_size=head_size,
            base=base,
            rotary_dim=rotary_dim,
            factor=factor,
            max_positions=max_positions,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            truncate=truncate,
            attention=attention,
        )
