"""Rotary position embedding that also scales each pair by the position: scores fade with the distance.

Sun et al., "A Length-Extrapolatable Transformer" (arXiv:2212.10554), section 3.2, algorithm 1. A query at n is
multiplied by zeta^(n / 512), a key at m by zeta^(-m / 512), so that a score has zeta^((n - m) / 512). Only their
difference matters, so exponents are counted from the middle of ``max_positions``, a constant: in the released code
from the middle of each call, which contradicts keys cached by a shorter one. Made for causal attention: scores of
keys to the right grow with the distance. Not done: the block-wise attention mask of section 3.3.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Positive, Size
from posexport.encodings.encoding import Array, register
from posexport.encodings.positions import Positions
from posexport.encodings.rope.rope import Role, Rope
from posexport.errors import PosexportError
from posexport.graph.ops.rotation import Layout

#: largest power of two that a query or key is multiplied or divided by: float16 ends at 2^16, and at 2^-14 exactness
_OCTAVES = 12


def oracle(
    x_BHTD: Array,
    pos_BT: Array,
    *,
    params: Mapping[str, Array],
    head_size: int,
    layout: str = "interleaved",
    base: float = 10000.0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    max_positions: int = 2048,
) -> Array:
    """Algorithm 1 for queries, pair by pair, as one complex power: (a + ib) exp((i theta + ln(zeta) / 512) m)."""
    assert not params
    out = np.array(np.broadcast_to(x_BHTD, x_BHTD.shape))
    assert head_size == out.shape[-1]
    for i in range(head_size // 2):
        a, b = (i, i + head_size // 2) if layout == "half" else (2 * i, 2 * i + 1)
        theta = np.power(base, -2 * i / head_size)
        zeta = (i / (head_size / 2) + gamma) / (1 + gamma)
        power_BT = 1j * theta * pos_BT + np.log(zeta) * (pos_BT - max_positions // 2) / scale_base
        rotated = (x_BHTD[..., a] + 1j * x_BHTD[..., b]) * np.exp(power_BT)[:, None]
        out[..., a], out[..., b] = rotated.real, rotated.imag
    return out


@register(
    "xpos",
    cases=[
        {"head_size": 20, "max_positions": 4400},
        {"head_size": 6, "layout": "half", "max_positions": 3000, "scale_base": 700.0},
        {"head_size": 14, "base": 500.0, "gamma": 0.7, "max_positions": 4401},
    ],
    source="Sun et al. 2022, arXiv:2212.10554, section 3.2",
    rotate=oracle,
)
class Xpos(Rope):
    """Rotates queries and keys and scales them by ``zeta^(n / 512)`` and its inverse: scores fade with the distance.

    ``max_positions`` limits the length: beyond some length no half-precision number holds both the queries and the
    keys, and the largest ``max_positions`` stays below it. ``scale_base`` is the 512; ``gamma`` bounds the fading.
    """

    def __init__(
        self,
        *,
        head_size: int,
        layout: Layout = "interleaved",
        base: float = 10000.0,
        scale_base: Positive = 512.0,
        gamma: Positive = 0.4,
        max_positions: Size = 2048,
    ) -> None:
        super().__init__(
            head_size=head_size,
            layout=layout,
            base=base,
            scale_base=scale_base,
            gamma=gamma,
            max_positions=max_positions,
        )
        pairs = head_size // 2
        self.max_positions = max_positions
        # Python floats: module.half() cannot round them
        self.fading = [math.log((i / pairs + gamma) / (1 + gamma)) / scale_base for i in range(pairs)]
        longest = math.floor(2 * _OCTAVES * math.log(2) / -self.fading[0])
        if max_positions > longest:
            raise PosexportError(
                f"{self.name}: max_positions must be at most {longest}, got {max_positions}: scales would leave half "
                f"precision; a larger scale_base than {scale_base:g} allows more"
            )

    @property
    def limit(self) -> int:
        return self.max_positions

    def waves(self, positions: Positions, dtype: torch.dtype, role: Role) -> tuple[Tensor, Tensor]:
        """The rotation's, times ``zeta^((n - middle) / scale_base)`` for queries and its inverse for keys."""
        cos_B1TF, sin_B1TF = super().waves(positions, dtype, role)
        fading = self.fading if role == "query" else [-rate for rate in self.fading]
        fading_F = torch.tensor(fading, dtype=dtype, device=positions.ids_BT.device)
        from_middle_BT = (positions.ids_BT - self.max_positions // 2).to(dtype)
        scale_B1TF = (from_middle_BT[:, None, :, None] * fading_F).exp()
        return cos_B1TF * scale_B1TF, sin_B1TF * scale_B1TF
