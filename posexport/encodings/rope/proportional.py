"""p-RoPE: only the fastest pairs are rotated, at their frequencies in a full rotation; pairs span all channels.

Barbero et al., "Round and Round We Go!" (arXiv:2410.06205), as released with Gemma's global layers
and in transformers 5 (``proportional``). Unlike a partial rotation, which divides the exponent by the rotated channels
only, and leaves a block at the end of every head alone.
"""

from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import ClassVar

import numpy as np

from posexport.base.options.check import FromOne, Positive
from posexport.encodings.encoding import Array, register
from posexport.encodings.rope.rope import Rope, rotation_oracle
from posexport.encodings.rope.schedule import Schedule
from posexport.errors import PosexportError


def oracle(
    _length_B1: Array, *, dim: int, base: float = 10000.0, fraction: float = 0.5, factor: float = 1.0
) -> tuple[Array, float]:
    """Frequencies of the whole head, 0 for the pairs past the fraction."""
    i = np.arange(dim // 2)
    return np.where(2 * (i + 1) <= fraction * dim, np.power(base, -2 * i / dim) / factor, 0.0), 1.0


@dataclass(frozen=True, kw_only=True)
class Proportional(Schedule):
    """``fraction`` of the pairs, rounded down, are rotated; ``factor`` divides their frequencies."""

    name: ClassVar[str] = "rope-proportional"

    fraction: Positive = 0.5
    factor: FromOne = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction > 1 or not self.rotated:
            raise PosexportError(
                f"{self.name}: fraction must be at most 1 and at least {2 / self.dim:.3g}, which is one pair of "
                f"{self.dim} channels, got {self.fraction!r}"
            )

    @property
    def rotated(self) -> int:
        return int(self.fraction * self.dim // 2)

    @cached_property
    def inv_freq(self) -> list[float]:
        """``base^(-2i / dim) / factor`` for the pairs that are rotated, 0 for the rest."""
        still = [0.0] * (self.dim // 2 - self.rotated)
        return [frequency / self.factor for frequency in self._plain[: self.rotated]] + still

    @classmethod
    def arguments(cls) -> dict[str, Parameter]:
        """Without ``rotary_dim``: all channels belong to a pair."""
        return {name: parameter for name, parameter in super().arguments().items() if name != "rotary_dim"}


@register(
    Proportional.name,
    cases=[
        {"head_size": 20},
        {"head_size": 12, "fraction": 0.25, "layout": "interleaved"},
        {"head_size": 14, "fraction": 0.5, "base": 500.0, "factor": 8},
        {"head_size": 6, "fraction": 1},
    ],
    source="Barbero et al. 2024, arXiv:2410.06205",
    rotate=rotation_oracle(oracle),
)
class RopeProportional(Rope, schedule=Proportional):
    """Rotates queries and keys by ``position base^(-2i / dim) / factor``, only the fastest pairs; takes any length.

    ``fraction`` of the pairs, rounded down, are rotated.
    """
