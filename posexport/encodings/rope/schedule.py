"""RoPE frequency schedules: the angle per position of each pair of rotated channels, with its settings.

Shape letters: B batch (or 1), T tokens, F pairs of channels.
"""

import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import Parameter
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posexport.base.options.check import AboveOne, Range, check_values
from posexport.errors import PosexportError


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Inverse frequencies for ``dim`` rotated channels (two a pair) from a ``base``, and an attention factor.

    The storage of the pairs is the rotation's business. Fields other than ``dim`` are settings of the encoding
    called ``name``. Raises PosexportError for values that give no frequencies.
    """

    #: the registered encoding
    name: ClassVar[str]
    #: frequencies depend on the length of the row
    by_length: ClassVar[bool] = False

    dim: int
    base: AboveOne = 10000.0

    def __post_init__(self) -> None:
        types = typing.get_type_hints(type(self), include_extras=True)
        check_values(self.name, types, {name: value for name, value in vars(self).items() if name != "dim"})
        if not Range(2, whole=True).holds(self.dim) or self.dim % 2:
            raise PosexportError(
                f"{self.name}: the rotated channels must be an even number from 2 on, got {self.dim!r}"
            )

    @classmethod
    def arguments(cls) -> dict[str, Parameter]:
        """Arguments of the encoding's constructor: the fields, with an optional ``rotary_dim`` in place of ``dim``."""
        keyword = Parameter.KEYWORD_ONLY
        types = typing.get_type_hints(cls)
        arguments = {
            field.name: Parameter(field.name, keyword, default=field.default, annotation=types[field.name])
            for field in fields(cls)
            if field.name != "dim"
        }
        rotary_dim = Parameter("rotary_dim", keyword, default=None, annotation=int | None)
        return {"base": arguments.pop("base"), "rotary_dim": rotary_dim, **arguments}

    @classmethod
    def for_head(cls, head_size: int, *, rotary_dim: int | None = None, **settings: Any) -> Self:
        """The schedule with these `arguments`; all channels of the head are rotated where ``rotary_dim`` is None."""
        return cls(dim=head_size if rotary_dim is None else rotary_dim, **settings)

    @property
    def settings(self) -> dict[str, Any]:
        """The `arguments` that make this schedule."""
        return {name: self.dim if name == "rotary_dim" else getattr(self, name) for name in self.arguments()}

    @property
    @abstractmethod
    def inv_freq(self) -> list[float]:
        """Radians per position of each pair, as Python floats: a module's cast to half precision cannot round them.

        If frequencies depend on the length: the frequencies of short rows.
        """

    def frequencies(self, ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Radians per position, [B or 1, F] in ``dtype``, for rows with the positions ``ids_BT``."""
        return torch.tensor(self.inv_freq, dtype=dtype, device=ids_BT.device)[None, :]

    @property
    def attention_factor(self) -> float:
        """Factor on the rotated channels of queries and of keys."""
        return 1.0

    @property
    def boundaries(self) -> list[int]:
        """Original lengths, where the schedule has one."""
        return []

    @property
    def cached_keys_until(self) -> int | None:
        """Row length beyond which rotated keys of shorter calls are wrong; None: they stay as they were cached."""
        return None

    @cached_property
    def _plain(self) -> list[float]:
        return [self.base ** (-2 * i / self.dim) for i in range(self.dim // 2)]


def length_of(ids_BT: Tensor) -> Tensor:
    """Length of each row: its largest position plus one, int64 [B or 1, 1].

    Per row and from this call alone: released code takes the batch's largest, and some of it remembers earlier calls.
    """
    return ids_BT.amax(-1, keepdim=True) + 1
