"""Rotary position embedding whose base grows with the length of the row, beyond the original length.

"Dynamic NTK" scaling of a public post of 2023, in the formula of transformers (see
`posexport.encodings.frequencies.dynamic` for where Peng et al., arXiv:2309.00071, differ). A row's length is its
largest position and one in the call at hand: nothing is remembered, and rows do not see each other. So a cached decode
differs from one full pass by definition, as in every implementation that caches rotated keys.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.frequencies.dynamic import Dynamic
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
) -> Array:
    """The new base, row by row: base (factor l / L - (factor - 1))^(dim / (dim - 2)) for rows longer than L."""
    assert not params
    assert x_BHTD.shape[-1] == head_size
    dim = rotary_dim or head_size
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    length_B1 = pos_BT.max(1)[:, None] + 1.0
    grown_B1 = np.where(length_B1 > max_positions, factor * length_B1 / max_positions - (factor - 1), 1.0)
    base_B1 = base * grown_B1 ** (dim / (dim - 2))
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if layout == "half" else (2 * i, 2 * i + 1)
        angle_BT = pos_BT / np.power(base_B1, 2 * i / dim)
        turned = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(1j * angle_BT)[:, None]
        out[..., a], out[..., b] = turned.real, turned.imag
    return out


@register(
    "rope-dynamic",
    cases=[
        {"head_size": 20, "max_positions": 300},
        # the second row of every test stands three positions further on: only it is longer than this
        {"head_size": 12, "max_positions": 4101},
        {"head_size": 6, "max_positions": 2059, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0, "max_positions": 5000},
    ],
    source="emozilla 2023, in arXiv:2309.00071, section on dynamic scaling",
    rotate=oracle,
)
class RopeDynamic(Rotary):
    """Rotates queries and keys; the base grows with a row's length beyond ``max_positions``; takes any length.

    ``max_positions``: the original length. ``factor``: how fast the base grows.
    """

    schedule_type = Dynamic
    length_dependent = True
    shift_invariant = False
    padding_invariant = False

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "half",
        base: float = 10000.0,
        rotary_dim: int | None = None,
        factor: float = 4.0,
        max_positions: int = 2048,
    ) -> None:
        schedule = Dynamic(
            dim=head_size if rotary_dim is None else rotary_dim,
            base=base,
            factor=factor,
            max_positions=max_positions,
        )
        super().__init__(
            schedule,
            layout,
            head_size=head_size,
            base=base,
            rotary_dim=rotary_dim,
            factor=factor,
            max_positions=max_positions,
        )
