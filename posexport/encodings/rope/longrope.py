"""A separate divisor for every pair, from one list up to the original length and from another beyond it.

Ding et al., "LongRoPE" (arXiv:2402.13753), section 3.2, as released with Phi-3 (``su``, ``longrope``): the list is
chosen by the length of the row, and queries and keys are scaled by sqrt(1 + ln(factor) / ln(original length)) at every
length. Not done: the first positions left alone (the paper's n-hat), which the released weights do not use, and
PhiMoE's other scale for each list (``short_mscale``, ``long_mscale``).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import FromOne, FromTwo, Positive, check_values
from posexport.encodings.encoding import Array, register
from posexport.encodings.rope.rope import Rope, rotation_oracle
from posexport.encodings.rope.schedule import Schedule, length_of
from posexport.errors import PosexportError

#: the default lists of divisors, as text
_DEFAULTS = {"short_factor": "1", "long_factor": "4"}


def oracle(
    length_B1: Array,
    *,
    dim: int,
    base: float = 10000.0,
    short_factor: str = "1",
    long_factor: str = "4",
    factor: float = 4.0,
    max_positions: int = 4096,
    attention: float | None = None,
) -> tuple[Array, float]:
    """Row by row: positions divided by the list that the row's length chooses; vectors times Phi-3's scale."""
    short_F, long_F = (np.array(text.split(","), dtype=np.float64) for text in (short_factor, long_factor))
    divisor_BF = np.where(length_B1 > max_positions, long_F, np.broadcast_to(short_F, dim // 2))
    scale = np.sqrt(np.log(max_positions * factor) / np.log(max_positions)) if attention is None else attention
    return 1 / (divisor_BF * np.power(base, np.arange(0, dim, 2) / dim)), scale


@dataclass(frozen=True, kw_only=True)
class LongRope(Schedule):
    """Frequencies of `RopeLongrope`, with a divisor for each pair in both lists."""

    name: ClassVar[str] = "rope-longrope"
    by_length: ClassVar[bool] = True

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: FromOne = 4.0
    max_positions: FromTwo = 4096
    attention: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _DEFAULTS:
            values = getattr(self, name)
            if len(values) != self.dim // 2:
                raise PosexportError(
                    f"{self.name}: {name} has {len(values)} numbers, {self.dim // 2} are needed: one for every pair of "
                    f"the {self.dim} rotated channels"
                )
            for value in values:
                check_values(self.name, {name: Positive}, {name: value})

    @classmethod
    def arguments(cls) -> dict[str, Parameter]:
        """The lists as text: one number for all pairs, or one for each, joined by commas."""
        arguments = super().arguments()
        return arguments | {
            name: arguments[name].replace(annotation=str, default=text) for name, text in _DEFAULTS.items()
        }

    @classmethod
    def for_head(cls, head_size: int, *, rotary_dim: int | None = None, **settings: Any) -> Self:
        """The schedule with these `arguments`."""
        pairs = (head_size if rotary_dim is None else rotary_dim) // 2
        lists = {name: cls._divisors(name, settings[name], pairs) for name in _DEFAULTS}
        return super().for_head(head_size, rotary_dim=rotary_dim, **{**settings, **lists})

    @classmethod
    def _divisors(cls, name: str, text: str, pairs: int) -> tuple[float, ...]:
        try:
            values = tuple(float(number) for number in str(text).split(","))
        except ValueError as err:
            raise PosexportError(
                f"{cls.name}: {name} must be one number, or {pairs} joined by commas, got {text!r}"
            ) from err
        return values * pairs if len(values) == 1 else values

    @property
    def settings(self) -> dict[str, Any]:
        """The `arguments` that make this schedule."""
        return super().settings | {name: ",".join(map(repr, getattr(self, name))) for name in _DEFAULTS}

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
        return [self.max_positions]

    @property
    def cached_keys_until(self) -> int:
        """The original length: beyond it all keys are rotated by the long list."""
        return self.max_positions


@register(
    LongRope.name,
    cases=[
        {"head_size": 20, "max_positions": 300},
        # the second row of every test is three positions further on: only it is longer than this
        {
            "head_size": 6,
            "max_positions": 4101,
            "short_factor": "1,1.5,2",
            "long_factor": "1.25, 8,64",
            "layout": "interleaved",
        },
        {"head_size": 12, "max_positions": 2059, "attention": 1.5},
        {"head_size": 14, "rotary_dim": 4, "base": 500.0, "max_positions": 5000, "short_factor": "1.5,3", "factor": 32},
    ],
    source="Ding et al. 2024, arXiv:2402.13753, section 3.2",
    rotate=rotation_oracle(oracle),
)
class RopeLongrope(Rope, schedule=LongRope):
    """Rotates queries and keys at frequencies divided pair by pair, by another list in long rows; takes any length.

    ``short_factor``, ``long_factor``: divisors for rows up to and beyond ``max_positions``, the original length: one
    number, or one a pair joined by commas. ``attention``: on queries and keys; where None it is
    sqrt(1 + ln(factor) / ln(max_positions)), ``factor`` saying how many times longer inputs become.
    """
