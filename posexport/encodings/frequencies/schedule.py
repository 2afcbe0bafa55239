"""What a frequency schedule is to a rotation: the angle that each pair of channels turns by, per position.

Shape letters: B batch (or 1), T tokens, F pairs of channels.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from posexport.errors import PosexportError

Setting = int | float | str | bool | None


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Frequencies for ``dim`` rotated channels (two a pair), from a ``base``, and a factor on the rotated channels.

    Knows nothing of how the pairs are stored. Raises PosexportError for values that give no frequencies.
    """

    #: the registered encoding that uses it
    name: ClassVar[str]
    #: frequencies depend on how long a row is
    by_length: ClassVar[bool] = False

    dim: int
    base: float = 10000.0

    def __post_init__(self) -> None:
        if not _whole(self.dim) or self.dim < 2 or self.dim % 2:
            raise PosexportError(
                f"{self.name}: the rotated channels must be an even number from 2 on, got {self.dim!r}"
            )
        if not _number(self.base) or self.base <= 1:
            raise PosexportError(f"{self.name}: base must be a finite number above 1, got {self.base!r}")

    @property
    @abstractmethod
    def inv_freq(self) -> list[float]:
        """Radians per position of each pair, as Python floats: a module's cast to half precision cannot round them.

        Where frequencies depend on the length: those of short rows.
        """

    def frequencies(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Radians per position, [B or 1, F] in ``dtype``, for rows with the positions ``ids_BT``."""
        return torch.tensor(self.inv_freq, dtype=dtype, device=ids_BT.device)[None, :]

    @property
    def attention_factor(self) -> float:
        """Queries and keys are multiplied by it where they are rotated."""
        return 1.0

    @property
    def boundaries(self) -> list[int]:
        """Original lengths, where the schedule has one."""
        return []

    def settings(self) -> dict[str, Setting]:
        """Its fields as the arguments of the encoding's constructor; numbers of a list are joined by commas."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dim"}
        joined = {k: ",".join(map(repr, v)) if isinstance(v, tuple) else v for k, v in given.items()}
        return {"rotary_dim": self.dim, **joined}

    @cached_property
    def _plain(self) -> list[float]:
        return [self.base ** (-2 * i / self.dim) for i in range(self.dim // 2)]

    def _from(self, least: float, **numbers: float) -> None:
        """Each must be a finite number not below ``least``."""
        for name, value in numbers.items():
            if not _number(value) or value < least:
                raise PosexportError(f"{self.name}: {name} must be a finite number from {least:g} on, got {value!r}")

    def _positive(self, **numbers: float) -> None:
        """Each must be a finite number above 0."""
        for name, value in numbers.items():
            if not _number(value) or value <= 0:
                raise PosexportError(f"{self.name}: {name} must be a finite number above 0, got {value!r}")

    def _length(self, value: int, least: int = 1) -> None:
        if not _whole(value) or value < least:
            raise PosexportError(f"{self.name}: max_positions must be a whole number from {least} on, got {value!r}")


def length_of(ids_BT: Tensor) -> Tensor:
    """How long each row is: its largest position and one, int64 [B or 1, 1].

    Per row and from this call alone: released code takes the batch's largest, and some of it remembers earlier calls.
    """
    return ids_BT.amax(-1, keepdim=True) + 1


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
