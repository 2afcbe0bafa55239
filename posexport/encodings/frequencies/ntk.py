"""A larger base, such that the slowest pair turns ``factor`` times slower and the fastest as before.

"NTK-aware" scaling, from a public post of 2023, as written down by Peng et al., "YaRN" (arXiv:2309.00071), under
'"NTK-aware" interpolation'.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from posexport.encodings.frequencies.schedule import Schedule
from posexport.errors import PosexportError


@dataclass(frozen=True, kw_only=True)
class Ntk(Schedule):
    """``factor``: how many times longer inputs become."""

    name: ClassVar[str] = "rope-ntk"

    factor: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._from(1, factor=self.factor)
        if self.dim < 4:
            raise PosexportError(f"{self.name}: at least 4 rotated channels are needed, got {self.dim}")

    @cached_property
    def inv_freq(self) -> list[float]:
        """``(base * factor^(dim / (dim - 2)))^(-2i / dim)``."""
        base = self.base * self.factor ** (self.dim / (self.dim - 2))
        return [base ** (-2 * i / self.dim) for i in range(self.dim // 2)]
