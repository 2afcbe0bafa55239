"""A divisor of its own for every pair, from one list up to the original length and from another beyond it.

Ding et al., "LongRoPE" (arXiv:2402.13753), section 3.2, as released with Phi-3 (``su``, ``longrope``): the list is
chosen by the length of the row, and queries and keys are scaled by sqrt(1 + ln(factor) / ln(original length)) at every
length. Not done: the first positions left alone (the paper's n-hat), which the released weights do not use, and
PhiMoE's other scale for each list (``short_mscale``, ``long_mscale``).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from posexport.encodings.frequencies.schedule import Schedule, length_of
from posexport.errors import PosexportError


@dataclass(frozen=True, kw_only=True)
class LongRope(Schedule):
    """``short_factor``, ``long_factor``: divisors, one a pair, for rows up to ``max_positions`` and beyond.

    ``factor``: how many times longer inputs become than ``max_positions``, the original length; it gives the factor
    on queries and keys where ``attention`` is None.
    """

    name: ClassVar[str] = "rope-longrope"
    by_length: ClassVar[bool] = True

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: float = 4.0
    max_positions: int = 4096
    attention: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._from(1, factor=self.factor)
        self._length(self.max_positions, 2)
        for name in ("short_factor", "long_factor"):
            values = getattr(self, name)
            if len(values) != self.dim // 2:
                raise PosexportError(
                    f"{self.name}: {name} has {len(values)} numbers, {self.dim // 2} are needed: one for every pair of "
                    f"the {self.dim} rotated channels"
                )
            for value in values:
                self._positive(**{name: value})
        if self.attention is not None:
            self._positive(attention=self.attention)

    @cached_property
    def inv_freq(self) -> list[float]:
        """``base^(-2i / dim) / short_factor[i]``: those up to the original length."""
        return [frequency / by for frequency, by in zip(self._plain, self.short_factor, strict=True)]

    @cached_property
    def long_inv_freq(self) -> list[float]:
        """``base^(-2i / dim) / long_factor[i]``: those beyond it."""
        return [frequency / by for frequency, by in zip(self._plain, self.long_factor, strict=True)]

    def frequencies(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """One list or the other, for every row."""
        long_F = torch.tensor(self.long_inv_freq, dtype=dtype, device=ids_BT.device)
        return torch.where(length_of(ids_BT) > self.max_positions, long_F, super().frequencies(ids_BT, dtype))

    @property
    def attention_factor(self) -> float:
        """``attention``, or the released formula."""
        if self.attention is not None:
            return self.attention
        return math.sqrt(1 + math.log(self.factor) / math.log(self.max_positions))

    @property
    def boundaries(self) -> list[int]:
        """The original length."""
        return [self.max_positions]
