"""Pairs of long wavelength divided by a factor, of short wavelength kept, a smooth change between.

Llama 3.1: Llama team, "The Llama 3 Herd of Models" (arXiv:2407.21783) has the base only; the scaling is in the code
released with the weights (``apply_scaling``) and in transformers (``llama3``), which agree.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from posexport.encodings.frequencies.schedule import Schedule
from posexport.errors import PosexportError


@dataclass(frozen=True, kw_only=True)
class Llama3(Schedule):
    """``max_positions``: the original length, in which a divided pair turns less than ``low_freq_factor`` times.

    A pair that turns more than ``high_freq_factor`` times is kept.
    """

    name: ClassVar[str] = "rope-llama3"

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    max_positions: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        self._from(1, factor=self.factor)
        self._positive(low_freq_factor=self.low_freq_factor, high_freq_factor=self.high_freq_factor)
        self._length(self.max_positions)
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
        turns = self.max_positions * frequency / (2 * math.pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns > self.high_freq_factor:
            return frequency
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - kept) * frequency / self.factor + kept * frequency

    @property
    def boundaries(self) -> list[int]:
        """The original length; nothing changes there, but it is where an extension begins."""
        return [self.max_positions]
