"""Rotary position embedding of the fastest pairs only, at the frequencies that they would have if all turned.

"p-RoPE": Barbero et al., "Round and Round We Go!" (arXiv:2410.06205), as released with Gemma's global layers. Differs
from a partial ``rope``: the pairs are made of all channels, and the exponent is divided by all of them.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.proportional import Proportional
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
    fraction: float = 0.5,
    factor: float = 1.0,
) -> Array:
    """The plain rotation of the whole head, pairs past the fraction left alone."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        angle_BT = pos_BT / factor / np.power(base, 2 * i / dim) * (2 * (i + 1) <= fraction * dim)
        turned = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope-proportional",
    cases=[
        {"head_size": 20},
        {"head_size": 12, "fraction": 0.25, "layout": "interleaved"},
        {"head_size": 14, "fraction": 0.5, "base": 500.0, "factor": 8},
        {"head_size": 6, "fraction": 1},
    ],
    source="Barbero et al. 2024, arXiv:2410.06205",
    rotate=oracle,
)
class RopeProportional(Rotary):
    """Rotates queries and keys by ``position base^(-2i / dim) / factor``, only the fastest pairs; takes any length.

    ``fraction`` of the pairs, rounded down, are turned.
    """

    schedule_type = Proportional

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        fraction: float = 0.5,
        factor: float = 1.0,
    ) -> None:
        schedule = Proportional(dim=head_size, base=base, fraction=fraction, factor=factor)
        super().__init__(schedule, layout, head_size=head_size, base=base, fraction=fraction, factor=factor)
