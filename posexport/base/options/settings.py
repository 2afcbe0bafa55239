"""``--set KEY=VALUE``: settings as pairs of texts, and the text of a value as the parameter's type."""

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from posexport.errors import PosexportError

_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false"}


def convert(name: str, text: str, annotation: Any) -> Any:
    """Converts ``text`` to ``annotation``; raises PosexportError that says what ``name`` must be."""
    if typing.get_origin(annotation) is tuple:
        item, parts = typing.get_args(annotation)[0], text.split(",")
        return tuple(convert(f"each of {name}, separated by commas,", part.strip(), item) for part in parts)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        if text.lower() == "none" and types.NoneType in annotation.__args__:
            return None
        (annotation,) = (kind for kind in annotation.__args__ if kind is not types.NoneType)
    try:
        return msgspec.convert(text, annotation, strict=False)
    except msgspec.ValidationError as err:
        values = _TYPE_NAMES.get(annotation) or f"one of {', '.join(typing.get_args(annotation))}"
        raise PosexportError(f"{name} must be {values}, got {text!r}") from err


def pairs(settings: Mapping[str, Any] | Sequence[str] | None) -> tuple[str, ...]:
    """Settings as the ``KEY=VALUE`` pairs of the command line."""

    def text(value: Any) -> str:
        return ",".join(map(text, value)) if isinstance(value, list | tuple) else str(value)

    if isinstance(settings, Mapping):
        return tuple(f"{key}={text(value)}" for key, value in settings.items())
    return tuple(settings or ())


def named_folders(option: str, folders: Mapping[str, Any] | Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """``NAME=DIR`` of an option, or folders by name, as pairs; PosexportError for one without a name or a folder."""
    named: dict[str, str] = {}
    for text in pairs(folders):
        name, _, folder = text.partition("=")
        if not name or not folder:
            raise PosexportError(f"{option} needs NAME=DIR, a name and a folder, got {text!r:.80}")
        if name in named:
            raise PosexportError(f"{option} has {name} twice; give each folder another name")
        named[name] = folder
    return tuple(named.items())
