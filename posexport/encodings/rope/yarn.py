"""Fast pairs as they were trained, slow pairs divided by a factor, a ramp between; queries and keys a little longer.

Peng et al., "YaRN" (arXiv:2309.00071), section 3. Where they differ, the authors' code and transformers
(``yarn``) are followed, as released weights were made with them: the ramp is linear in the pair's index (in the paper:
in the number of rotations), and its ends are rounded outwards to whole indices (``truncate``; gpt-oss does not).
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

#: keeps the ramp's slope finite where both of its ends fall on one index (transformers' constant)
_STEP = 0.001


def oracle(
    _length_B1: Array,
    *,
    dim: int,
    base: float = 10000.0,
    factor: float = 4.0,
    max_positions: int = 2048,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention: float | None = None,
) -> tuple[Array, float]:
    """Kept and interpolated frequencies mixed by a ramp between the pairs of wavelengths L / beta."""
    # a pair rotates beta times within L positions where base^(2i / dim) = L / (2 pi beta)
    ends = np.log(max_positions / (2 * np.pi * np.array([beta_fast, beta_slow]))) / np.log(base) * dim / 2
    if truncate:
        ends = np.array([np.floor(ends[0]), np.ceil(ends[1])])
    ends = np.clip(ends, 0, dim - 1)
    ends[1] += 0.001 * (ends[0] == ends[1])
    weight = np.interp(np.arange(dim // 2), ends, [1.0, 0.0])
    theta = np.power(base, -np.arange(0, dim, 2) / dim)
    return weight * theta + (1 - weight) * theta / factor, 0.1 * np.log(factor) + 1 if attention is None else attention


@dataclass(frozen=True, kw_only=True)
class Yarn(Schedule):
    """Computes the frequencies of `RopeYarn`."""

    name: ClassVar[str] = "rope-yarn"

    factor: FromOne = 4.0
    max_positions: Size = 2048
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    truncate: bool = True
    attention: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # below that the ramp would end before the first pair, and the released formula divides none
        least = math.ceil(2 * math.pi * self.beta_slow)
        if self.max_positions < least:
            raise PosexportError(
                f"{self.name}: max_positions must be a whole number from {least} on, got {self.max_positions}"
            )
        if self.beta_fast < self.beta_slow:
            raise PosexportError(
                f"{self.name}: beta_fast must be at least beta_slow={self.beta_slow!r}, got {self.beta_fast!r}"
            )

    @cached_property
    def inv_freq(self) -> list[float]:
        """``(kept + (1 - kept) / factor) base^(-2i / dim)``."""
        low, high = self._index(self.beta_fast), self._index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        if low == high:
            high += _STEP
        ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(self.dim // 2)]
        return [f * (1 - share) + f / self.factor * share for f, share in zip(self._plain, ramp, strict=True)]

    def _index(self, rotations: float) -> float:
        """Index, as a real number, of the pair that rotates ``rotations`` times within the original length."""
        return self.dim * math.log(self.max_positions / (rotations * 2 * math.pi)) / (2 * math.log(self.base))

    @property
    def attention_factor(self) -> float:
        """``attention``, or the paper's formula, for queries and keys each."""
        return attention_scale(self.factor) if self.attention is None else self.attention

    @property
    def boundaries(self) -> list[int]:
        """The original length; nothing changes there, but it is where an extension begins."""
        return [self.max_positions]


def attention_scale(factor: float, slope: float = 1.0) -> float:
    """``0.1 slope ln(factor) + 1``, never less than 1; DeepSeek's configurations give other slopes (``mscale``)."""
    return 0.1 * slope * math.log(factor) + 1.0 if factor > 1 else 1.0


@register(
    Yarn.name,
    cases=[
        {"head_size": 20, "max_positions": 300},
        {"head_size": 44, "factor": 2.5, "layout": "interleaved"},
        {"head_size": 64, "truncate": False, "factor": 32, "max_positions": 4096, "base": 150000.0},
        {"head_size": 34, "rotary_dim": 24, "base": 500.0, "beta_fast": 20.0, "beta_slow": 2.0, "attention": 1.5},
        # a base so small that the ramp would end after the last pair
        {"head_size": 24, "base": 15.0},
        # both ends of the ramp fall on one index, just before the fourth pair
        {"head_size": 12, "beta_fast": 3.261996, "beta_slow": 3.261996, "truncate": False},
    ],
    source="Peng et al. 2023, arXiv:2309.00071, section 3",
    rotate=rotation_oracle(oracle),
)
class RopeYarn(Rope, schedule=Yarn):
    """Rotates queries and keys, slow pairs at frequencies divided by ``factor``; takes any length.

    ``max_positions``: the original length, in which pairs that are kept rotate more than ``beta_fast`` times and pairs
    that are divided less than ``beta_slow`` times. ``attention``: on queries and keys; 0.1 ln(factor) + 1 where None.
    """
