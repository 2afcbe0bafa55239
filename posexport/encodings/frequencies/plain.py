"""Frequencies as they were trained: base^(-2i / dim).

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.2.
"""

from dataclasses import dataclass
from typing import ClassVar

from posexport.encodings.frequencies.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Plain(Schedule):
    """The first pair turns by one radian a position, each next one less, down to nearly 1 / base."""

    name: ClassVar[str] = "rope"

    @property
    def inv_freq(self) -> list[float]:
        """``base^(-2i / dim)``."""
        return self._plain
