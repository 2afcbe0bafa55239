"""Only the fastest pairs turn, at the frequencies they would have if all did; the pairs span all channels.

"p-RoPE": Barbero et al., "Round and Round We Go!" (arXiv:2410.06205), as released with Gemma's global layers
and in transformers 5 (``proportional``). Unlike a partial rotation, whose exponent is divided by the rotated channels
only, and which leaves a block at the end of every head alone.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from posexport.encodings.frequencies.schedule import Schedule, Setting
from posexport.errors import PosexportError


@dataclass(frozen=True, kw_only=True)
class Proportional(Schedule):
    """``fraction`` of the pairs, rounded down, turn; ``factor`` divides their frequencies."""

    name: ClassVar[str] = "rope-proportional"

    fraction: float = 0.5
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._from(1, factor=self.factor)
        self._positive(fraction=self.fraction)
        if self.fraction > 1 or not self.turning:
            raise PosexportError(
                f"{self.name}: fraction must be at most 1 and at least {2 / self.dim:.3g}, which is one pair of "
                f"{self.dim} channels, got {self.fraction!r}"
            )

    @property
    def turning(self) -> int:
        """How many pairs turn."""
        return int(self.fraction * self.dim // 2)

    @cached_property
    def inv_freq(self) -> list[float]:
        """``base^(-2i / dim) / factor`` for the pairs that turn, 0 for the rest."""
        still = [0.0] * (self.dim // 2 - self.turning)
        return [frequency / self.factor for frequency in self._plain[: self.turning]] + still

    def settings(self) -> dict[str, Setting]:
        """Without ``rotary_dim``: all channels belong to a pair."""
        return {name: value for name, value in super().settings().items() if name != "rotary_dim"}
