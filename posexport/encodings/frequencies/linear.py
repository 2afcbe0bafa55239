"""Position interpolation: all frequencies divided by one factor, as if positions were that much closer together.

Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation" (arXiv:2306.15595),
section 2.3; ``linear`` in Hugging Face configurations.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from posexport.encodings.frequencies.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """``factor``: how many times longer inputs become."""

    name: ClassVar[str] = "rope-linear"

    factor: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._from(1, factor=self.factor)

    @cached_property
    def inv_freq(self) -> list[float]:
        """``base^(-2i / dim) / factor``."""
        return [frequency / self.factor for frequency in self._plain]
