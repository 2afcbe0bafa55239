"""Rotary position embedding by position interpolation: every frequency divided by one factor.

Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation" (arXiv:2306.15595),
section 2.3: positions are divided; here frequencies are, which is the same and leaves positions integers.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.linear import Linear
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
) -> Array:
    """Equation 3 of the paper: the positions m divided, the frequencies as they were."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = rotary_dim or head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        angle_BT = (pos_BT / factor) / np.power(base, 2 * i / dim)
        turned = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope-linear",
    cases=[
        {"head_size": 20},
        {"head_size": 6, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0, "factor": 32},
    ],
    source="Chen et al. 2023, arXiv:2306.15595, section 2.3",
    rotate=oracle,
)
class RopeLinear(Rotary):
    """Rotates queries and keys by ``position base^(-2i / dim) / factor``; takes any length."""

    schedule_type = Linear

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        rotary_dim: int | None = None,
        factor: float = 4.0,
    ) -> None:
        schedule = Linear(dim=head_size if rotary_dim is None else rotary_dim, base=base, factor=factor)
        super().__init__(schedule, layout, head_size=head_size, base=base, rotary_dim=rotary_dim, factor=factor)
