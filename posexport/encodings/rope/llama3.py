"""Pairs of long wavelength divided by a factor, of short wavelength kept, a smooth change between.

Llama 3.1: Llama team, "The Llama 3 Herd of Models" (arXiv:2407.21783) has the base only; the scaling is in the code
released with the weights (``apply_scaling``) and in transformers (``llama3``), which agree.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from posexport.base.options.check import FromOne, Positive, Size
from posexport.encodings.encoding import Array, register
from posexport.encodings.rope.rope import Rope, rotation_oracle
from posexport.encodings.rope.schedule import Schedule
from posexport.errors import PosexportError


def oracle(
    _length_B1: Array,
    *,
    dim: int,
    base: float = 10000.0,
    factor: float = 8.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    max_positions: int = 8192,
) -> tuple[Array, float]:
    """By wavelengths: the share of a frequency that is kept rises from 0 at L / low to 1 at L / high, in rotations."""
    theta = np.power(base, -np.arange(0, dim, 2) / dim)
    wavelength = 2 * np.pi / theta
    weight = (max_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
    weight = np.clip(weight, 0.0, 1.0)
    return theta * (weight + (1 - weight) / factor), 1.0


@dataclass(frozen=True, kw_only=True)
class Llama3(Schedule):
    """Computes the frequencies of `RopeLlama3`."""

    name: ClassVar[str] = "rope-llama3"

    factor: FromOne = 8.0
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    max_positions: Size = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high_freq_factor <= self.low_freq_factor:
            raise PosexportError(
                f"{self.name}: high_freq_factor must be above low_freq_factor={self.low_freq_factor!r}, "
                f"got {self.high_freq_factor!r}"
            )

    @cached_property
    def inv_freq(self) -> list[float]:
        """Plain frequencies, scaled by wavelength."""
        return [self._scaled(frequency) for frequency in self._plain]

    def _scaled(self, frequency: float) -> float:
        rotations = self.max_positions * frequency / (2 * math.pi)
        if rotations < self.low_freq_factor:
            return frequency / self.factor
        if rotations > self.high_freq_factor:
            return frequency
        weight = (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - weight) * frequency / self.factor + weight * frequency

    @property
    def boundaries(self) -> list[int]:
        """The original length; nothing changes there, but it is where an extension begins."""
        return [self.max_positions]


@register(
    Llama3.name,
    cases=[
        {"head_size": 20, "max_positions": 300},
        {"head_size": 34, "base": 500000.0},
        {"head_size": 44, "factor": 2.5, "layout": "interleaved", "max_positions": 1000},
        {
            "head_size": 34,
            "rotary_dim": 24,
            "base": 500.0,
            "low_freq_factor": 3,
            "high_freq_factor": 50.0,
            "max_positions": 700,
        },
    ],
    source="Llama team 2024, arXiv:2407.21783, and the released code",
    rotate=rotation_oracle(oracle),
)
class RopeLlama3(Rope, schedule=Llama3):
    """Rotates queries and keys, pairs of long wavelength at frequencies divided by ``factor``; takes any length.

    ``max_positions``: the original length, in which pairs that are divided rotate less than ``low_freq_factor`` times
    and pairs that are kept more than ``high_freq_factor`` times.
    """
