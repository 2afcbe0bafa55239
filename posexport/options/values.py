"""Types of arguments that say which values fit, and the sentence for one that does not."""

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

from posexport.errors import PosexportError


@dataclass(frozen=True)
class Range:
    """A number's range, in an ``Annotated``: whole or real, from ``least`` on or above it, to below ``end``."""

    least: float
    whole: bool = False
    above: bool = False
    end: float = math.inf

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is a finite number of the range."""
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or (self.whole and not isinstance(value, int)):
            return False
        return bool((value > self.least if self.above else value >= self.least) and value < self.end)

    def __str__(self) -> str:
        number = "whole number" if self.whole else "finite number"
        end = "on" if self.end == math.inf else f"to below {self.end:g}"
        return f"a {number} above {self.least:g}" if self.above else f"a {number} from {self.least:g} {end}"


Count = Annotated[int, Range(0, whole=True)]
Size = Annotated[int, Range(1, whole=True)]
FromTwo = Annotated[int, Range(2, whole=True)]
FromFour = Annotated[int, Range(4, whole=True)]
Positive = Annotated[float, Range(0, above=True)]
AboveOne = Annotated[float, Range(1, above=True)]
Fraction = Annotated[float, Range(0, end=1)]
FromOne = Annotated[float, Range(1)]


def check_values(owner: str, types: Mapping[str, Any], values: Mapping[str, object]) -> None:
    """PosexportError for the first value that is not of its type: a `Range`, a ``Literal``, or None with either.

    ``owner``: begins the sentence, unless it is empty. ``types``: with ``Annotated`` in them
    (``typing.get_type_hints(..., include_extras=True)``); any other type accepts every value.
    """
    for name, value in values.items():
        reason = _needed(types.get(name), value)
        if reason:
            raise PosexportError(f"{owner}{': ' if owner else ''}{name} must be {reason}, got {value!r:.40}")


def _needed(kind: Any, value: object) -> str | None:
    """What ``value`` should be, where it is not of the type ``kind``."""
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        if value is None and NoneType in typing.get_args(kind):
            return None
        reasons = [_needed(each, value) for each in typing.get_args(kind) if each is not NoneType]
        return f"{reasons[0]} (or none)" if all(reasons) else None
    if typing.get_origin(kind) is Literal:
        *others, last = typing.get_args(kind)
        return None if value in (*others, last) else f"{', '.join(others)} or {last}"
    if typing.get_origin(kind) is Annotated:
        ranges = [each for each in typing.get_args(kind)[1:] if isinstance(each, Range)]
        return next((str(each) for each in ranges if not each.holds(value)), None)
    return None
