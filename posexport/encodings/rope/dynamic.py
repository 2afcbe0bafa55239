"""A base that grows with the input: plain frequencies up to the original length, slower ones the longer a row is.

"Dynamic NTK" scaling, from a public post of 2023, as written down by Peng et al., "YaRN" (arXiv:2309.00071), under
"Dynamic scaling". The formula follows transformers (``dynamic``), which models run with: the base grows with
factor * length / original - (factor - 1), where the paper takes length / original. Both are 1 at the original length.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import FromOne, Size
from posexport.encodings.encoding import Array, register
from posexport.encodings.rope.rope import Rope, rotation_oracle
from posexport.encodings.rope.schedule import Schedule, length_of
from posexport.errors import PosexportError


def oracle(
    length_B1: Array, *, dim: int, base: float = 10000.0, factor: float = 4.0, max_positions: int = 2048
) -> tuple[Array, float]:
    """The new base, row by row: base (factor l / L - (factor - 1))^(dim / (dim - 2)) for rows longer than L."""
    grown_B1 = np.where(length_B1 > max_positions, factor * length_B1 / max_positions - (factor - 1), 1.0)
    base_B1 = base * grown_B1 ** (dim / (dim - 2))
    return 1 / np.power(base_B1, np.arange(0, dim, 2) / dim), 1.0


@dataclass(frozen=True, kw_only=True)
class Dynamic(Schedule):
    """Computes the frequencies of `RopeDynamic`."""

    name: ClassVar[str] = "rope-dynamic"
    by_length: ClassVar[bool] = True

    factor: FromOne = 4.0
    max_positions: Size = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim < 4:
            raise PosexportError(f"{self.name}: at least 4 rotated channels are needed, got {self.dim}")

    @property
    def inv_freq(self) -> list[float]:
        """Those up to the original length: plain."""
        return self._plain

    def frequencies(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """``base^(-2i / dim) growth^(-2i / (dim - 2))``; the growth is exactly 1 up to the original length."""
        exponents = [-2 * i / (self.dim - 2) for i in range(self.dim // 2)]
        exponent_F = torch.tensor(exponents, dtype=dtype, device=ids_BT.device)
        beyond_B1 = (length_of(ids_BT) - self.max_positions).clamp(min=0).to(dtype)
        growth_B1 = 1 + beyond_B1 * (self.factor / self.max_positions)
        return super().frequencies(ids_BT, dtype) * growth_B1.pow(exponent_F)

    @property
    def boundaries(self) -> list[int]:
        return [self.max_positions]


@register(
    Dynamic.name,
    cases=[
        {"head_size": 20, "max_positions": 300},
        # the second row of every test is three positions further on: only it is longer than this
        {"head_size": 12, "max_positions": 4101},
        {"head_size": 6, "max_positions": 2059, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0, "max_positions": 5000},
    ],
    source="emozilla 2023, in arXiv:2309.00071, section on dynamic scaling",
    rotate=rotation_oracle(oracle),
)
class RopeDynamic(Rope, schedule=Dynamic):
    """Rotates queries and keys; the base grows with a row's length beyond ``max_positions``; takes any length.

    ``max_positions``: the original length. ``factor``: how fast the base grows.
    """
