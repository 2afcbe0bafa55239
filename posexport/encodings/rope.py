"""Rotary position embedding: pairs of channels of queries and keys, turned by position times frequency.

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.2. RoFormer and GPT-J store pairs ``interleaved``, GPT-NeoX and
Llama as two ``half``s, which is the default here. Not done: a rotation of the values, as RoFormer offers.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.plain import Plain
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
) -> Array:
    """Equation 13, pair by pair: (a + ib) e^(i m theta), theta = base^(-2i / dim)."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = rotary_dim or head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        angle_BT = pos_BT / np.power(base, 2 * i / dim)
        turned = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope",
    cases=[
        {"head_size": 20},
        {"head_size": 6, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0},
        {"head_size": 9, "rotary_dim": 4, "layout": "interleaved"},
        {"head_size": 2},
    ],
    source="Su et al. 2021, arXiv:2104.09864, section 3.2.2",
    rotate=oracle,
)
class Rope(Rotary):
    """Turns pairs of channels of queries and keys by ``position base^(-2i / dim)``; takes any length.

    ``rotary_dim``: the first channels of a head that are rotated, all where it is None.
    """

    schedule_type = Plain

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        rotary_dim: int | None = None,
    ) -> None:
        schedule = Plain(dim=head_size if rotary_dim is None else rotary_dim, base=base)
        super().__init__(schedule, layout, head_size=head_size, base=base, rotary_dim=rotary_dim)
