"""``--set KEY=VALUE``: text to typed settings, with the known names in the refusal."""

import difflib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from posexport.errors import PosexportError


def parse(pairs: Iterable[str]) -> dict[str, str]:
    """``["hidden=60", ...]`` as a mapping; PosexportError for a pair without ``=`` or a key given twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise PosexportError(f"--set takes KEY=VALUE, got {pair!r}")
        if key in found:
            raise PosexportError(f"--set {key} is given twice, as {found[key]} and {value}")
        found[key] = value
    return found


def convert(key: str, text: str, kind: Any) -> Any:
    """``text`` as the type ``kind``: bool, int, float or str, and None where ``kind`` allows it."""
    name = str(getattr(kind, "__name__", kind))
    if "None" in name or "None" in str(kind):
        if text.lower() == "none":
            return None
        kind = next((k for k in (bool, int, float) if k.__name__ in str(kind)), str)
    if kind is bool:
        if text.lower() in ("true", "1", "yes", "false", "0", "no"):
            return text.lower() in ("true", "1", "yes")
        raise PosexportError(f"--set {key} takes true or false, got {text!r}")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise PosexportError(f"--set {key} takes {wanted}, got {text!r}") from None
    return text


def into(record: type[Any], given: dict[str, str]) -> dict[str, Any]:
    """The settings that are fields of a dataclass, typed."""
    import typing

    hints = typing.get_type_hints(record)
    named = {field.name for field in fields(record)} & set(given)
    return {name: convert(name, given[name], hints[name]) for name in named}


def refuse_unknown(given: dict[str, str], known: set[str], where: str) -> None:
    """PosexportError for the first setting nobody used, with the closest and all known names."""
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise PosexportError(f"--set {key}: {where} has no such setting{hint}; it has {', '.join(sorted(known))}")
