"""Position interpolation: all frequencies divided by one factor, as if positions were that much closer together.

Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation" (arXiv:2306.15595),
section 2.3; ``linear`` in Hugging Face configurations.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from posexport.base.options.check import FromOne
from posexport.encodings.encoding import Array, register
from posexport.encodings.rope.rope import Rope, rotation_oracle
from posexport.encodings.rope.schedule import Schedule


def oracle(_length_B1: Array, *, dim: int, base: float = 10000.0, factor: float = 4.0) -> tuple[Array, float]:
    """Equation 3 of the paper, f(x, m L / L'): angles of positions that are ``factor`` times closer together."""
    return 1 / (factor * np.power(base, np.arange(0, dim, 2) / dim)), 1.0


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """``factor``: how many times longer inputs become."""

    name: ClassVar[str] = "rope-linear"

    factor: FromOne = 4.0

    @cached_property
    def inv_freq(self) -> list[float]:
        """``base^(-2i / dim) / factor``."""
        return [frequency / self.factor for frequency in self._plain]


@register(
    Linear.name,
    cases=[
        {"head_size": 20},
        {"head_size": 6, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 14, "rotary_dim": 6, "base": 500.0, "factor": 32},
    ],
    source="Chen et al. 2023, arXiv:2306.15595, section 2.3",
    rotate=rotation_oracle(oracle),
)
class RopeLinear(Rope, schedule=Linear):
    """Rotates queries and keys by ``position base^(-2i / dim) / factor``; takes any length."""
