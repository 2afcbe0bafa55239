"""Text that users type, as the value a parameter wants."""

import types
import typing
from typing import Any, Literal

from posexport.errors import PosexportError


def convert(what: str, text: str, kind: Any) -> int | float | str | bool | tuple[Any, ...] | None:
    """``text`` as a value of the annotation ``kind``; PosexportError says what ``what`` must be."""
    if isinstance(kind, types.UnionType):
        if text.lower() == "none" and types.NoneType in kind.__args__:
            return None
        (kind,) = [k for k in kind.__args__ if k is not types.NoneType]
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if text not in choices:
            raise PosexportError(f"{what} must be one of {', '.join(choices)}, got {text!r}")
        return text
    if typing.get_origin(kind) is tuple:
        return tuple(
            convert(f"each of {what}, separated by commas,", one.strip(), kind.__args__[0]) for one in text.split(",")
        )
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise PosexportError(f"{what} must be true or false, got {text!r}")
        return text.lower() == "true"
    if kind is str:
        return text
    try:
        number: int | float = kind(text)
    except ValueError as err:
        wanted = "a whole number" if kind is int else "a number"
        raise PosexportError(f"{what} must be {wanted}, got {text!r}") from err
    return number
