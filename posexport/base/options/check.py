"""Values of options: their types and bounds, the sentence for one that does not fit, and the closest known word."""

import difflib
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, SupportsIndex, Union, get_args, get_origin

import msgspec

from posexport.base.options.option import options_in
from posexport.errors import PosexportError

#: share of letters that must agree: "convrt" is convert (0.92), "mamba" is not llama (0.6)
_CLOSE = 0.72


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to ``word``, ignoring case, ``-`` and ``_``; None if none is close.

    Example:
        >>> closest("relative_keys", ["relative-key", "rope"])
        'relative-key'
        >>> closest("mamba", ["llama"])
    """
    by_plain = {_normalized(name): name for name in reversed(list(known))}
    matches = difflib.get_close_matches(_normalized(word), by_plain, n=1, cutoff=_CLOSE)
    return by_plain[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean X?``, or ``otherwise`` if no word is close."""
    match = closest(word, known)
    return otherwise if match is None else f"did you mean {match}?"


def check_choice(what: str, value: object, known: Iterable[str]) -> None:
    """Raises PosexportError if ``value`` is not one of the known words."""
    words = list(known)
    if value not in words:
        hint = did_you_mean(str(value), words)
        raise PosexportError(f"{what} must be one of {', '.join(words)}, got {value!r}{hint and f'; {hint}'}")


def _normalized(word: str) -> str:
    return word.lower().replace("_", "-")


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
        reasons = [_needed(member, value) for member in typing.get_args(kind) if member is not NoneType]
        return f"{reasons[0]} (or none)" if all(reasons) else None
    if typing.get_origin(kind) is Literal:
        *first, last = typing.get_args(kind)
        return None if value in (*first, last) else f"{', '.join(first)} or {last}"
    if typing.get_origin(kind) is Annotated:
        ranges = [limits for limits in typing.get_args(kind)[1:] if isinstance(limits, Range)]
        return next((str(limits) for limits in ranges if not limits.holds(value)), None)
    return None


def check_options(options: msgspec.Struct) -> None:
    """Raises PosexportError for an option of the wrong type, a word that is no choice, or a number out of bounds."""
    for option in options_in(type(options)).values():
        value = getattr(options, option.name)
        for word in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []:
            if option.choices and isinstance(word, str):
                check_choice(option.name, word, option.choices)
        if not _fits(value, option.type):
            raise PosexportError(f"{option.name} must be {_words(option.type)}, got {_shown(value)}")
        least, most = option.about.least, option.about.most
        numbers = value if isinstance(value, Collection) and not isinstance(value, str) else (value,)
        for number in numbers if least is not None else ():
            if number is not None and (number < least or (most is not None and number > most)):
                bounds = f"at least {least}" if most is None or number < least else f"at most {most}"
                raise PosexportError(f"{option.name} must be {bounds}, got {number}")


def as_path(name: str, value: object) -> Path:
    """The argument ``name`` as a path; raises PosexportError if it is none."""
    if isinstance(value, str | PathLike):
        return Path(value)
    raise PosexportError(f"{name} must be a path, got {_shown(value)}")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else f'{text[:60]}...'} ({type(value).__name__})"


#: type or container -> whether a value has it
_CHECKS: dict[Any, Callable[[Any], bool]] = {
    NoneType: lambda value: value is None,
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    int: lambda value: isinstance(value, SupportsIndex) and not isinstance(value, bool),
    float: lambda value: isinstance(value, Real) and not isinstance(value, bool),
    PathLike: lambda value: isinstance(value, PathLike),
    Mapping: lambda value: isinstance(value, Mapping),
    Sequence: lambda value: isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping),
    Callable: callable,
}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has the type of an annotation; annotations that `_CHECKS` does not know accept everything."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, member) for member in arguments)
    if origin is Literal:
        return value in arguments
    if origin not in _CHECKS:
        return True
    return _CHECKS[origin](value) and (origin is not Sequence or all(_fits(item, arguments[0]) for item in value))


#: type or container -> its name in messages
_WORDS: dict[Any, str] = {
    NoneType: "None",
    bool: "True or False",
    str: "a string",
    int: "an integer",
    float: "a number",
    PathLike: "a path",
    Mapping: "a mapping",
    Callable: "a function",
}


def _words(kind: Any) -> str:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(member) for member in arguments))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is Sequence:
        return f"a list of which each is {_words(arguments[0])}"
    return _WORDS.get(origin, "another value")
