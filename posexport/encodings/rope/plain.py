"""Unscaled RoPE frequencies: base^(-2i / dim).

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.2.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from posexport.encodings.encoding import Array
from posexport.encodings.rope.schedule import Schedule


def oracle(_length_B1: Array, *, dim: int, base: float = 10000.0) -> tuple[Array, float]:
    """Theta of equation 15, ``base^(-2 (i - 1) / d)`` for i from 1 to d / 2."""
    return np.array([1 / np.power(base, 2 * (i - 1) / dim) for i in range(1, dim // 2 + 1)]), 1.0


@dataclass(frozen=True, kw_only=True)
class Plain(Schedule):
    """The first pair rotates by one radian a position, each next one less, down to nearly 1 / base."""

    name: ClassVar[str] = "rope"

    @property
    def inv_freq(self) -> list[float]:
        """Returns ``base^(-2i / dim)``."""
        return self._plain
