"""A larger base, so that the slowest pair rotates ``factor`` times slower and the fastest as before.

"NTK-aware" scaling, from a public post of 2023, as written down by Peng et al., "YaRN" (arXiv:2309.00071), under
'"NTK-aware" interpolation'.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from posexport.base.options.check import FromOne
from posexport.encodings.encoding import Array, register
from posexport.encodings.rope.rope import Rope, rotation_oracle
from posexport.encodings.rope.schedule import Schedule
from posexport.errors import PosexportError


def oracle(_length_B1: Array, *, dim: int, base: float = 10000.0, factor: float = 4.0) -> tuple[Array, float]:
    """The post: the slowest pair is interpolated by the factor, the others by what the same base gives."""
    i = np.arange(dim // 2)
    # the base's power of i, times the power of i of a factor that reaches ``factor`` at the last pair
    return 1 / np.power(base, 2 * i / dim) / np.power(float(factor), i / (dim // 2 - 1)), 1.0


@dataclass(frozen=True, kw_only=True)
class Ntk(Schedule):
    """``factor``: how many times longer inputs become."""

    name: ClassVar[str] = "rope-ntk"

    factor: FromOne = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim < 4:
            raise PosexportError(f"{self.name}: at least 4 rotated channels are needed, got {self.dim}")

    @cached_property
    def inv_freq(self) -> list[float]:
        """``(base * factor^(dim / (dim - 2)))^(-2i / dim)``."""
        base = self.base * self.factor ** (self.dim / (self.dim - 2))
        return [base ** (-2 * i / self.dim) for i in range(self.dim // 2)]


@register(
    Ntk.name,
    cases=[
        {"head_size": 20},
        {"head_size": 6, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0, "factor": 8},
        {"head_size": 4},
    ],
    source="bloc97 2023, in arXiv:2309.00071, section 3",
    rotate=rotation_oracle(oracle),
)
class RopeNtk(Rope, schedule=Ntk):
    """Rotates queries and keys at frequencies of the base ``base factor^(dim / (dim - 2))``; takes any length."""
