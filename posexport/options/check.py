"""Checks the types, choices and bounds of a record's options, so that a wrong argument is one clear sentence."""

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, SupportsIndex, Union, get_args, get_origin

import msgspec

from posexport.errors import PosexportError
from posexport.options.option import options_in
from posexport.options.suggest import check_choice


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
