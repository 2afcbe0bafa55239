"""Rotary position embedding with a larger base: slow pairs slowed by up to a factor, fast ones hardly.

"NTK-aware" scaling of a public post of 2023, as Peng et al., "YaRN" (arXiv:2309.00071), write it down. Fixed: it does
not look at the length; see rope-dynamic.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.ntk import Ntk
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
    """The post: the slowest pair is interpolated by the factor, the others by what the same base gives."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = rotary_dim or head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        # the base's own power of i, times the power of i of a factor that reaches ``factor`` at the last pair
        slowed = np.power(float(factor), i / (dim // 2 - 1))
        angle_BT = pos_BT / np.power(base, 2 * i / dim) / slowed
        turned = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope-ntk",
    cases=[
        {"head_size": 20},
        {"head_size": 6, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0, "factor": 8},
        {"head_size": 4},
    ],
    source="bloc97 2023, in arXiv:2309.00071, section 3",
    rotate=oracle,
)
class RopeNtk(Rotary):
    """Rotates queries and keys at frequencies of the base ``base factor^(dim / (dim - 2))``; takes any length."""

    schedule_type = Ntk

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        rotary_dim: int | None = None,
        factor: float = 4.0,
    ) -> None:
        schedule = Ntk(dim=head_size if rotary_dim is None else rotary_dim, base=base, factor=factor)
        super().__init__(schedule, layout, head_size=head_size, base=base, rotary_dim=rotary_dim, factor=factor)
