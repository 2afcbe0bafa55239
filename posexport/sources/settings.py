"""``--set KEY=VALUE``: text to typed settings, with the known names in the refusal."""

from collections.abc import Iterable, Sequence
from typing import Any

from posexport.base.options.check import did_you_mean
from posexport.base.options.settings import convert
from posexport.errors import PosexportError
from posexport.nn.config import Config


def parse(pairs: Iterable[str]) -> dict[str, str]:
    """``["hidden=60", ...]`` as a mapping; PosexportError for a pair without ``=`` or a repeated key."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise PosexportError(f"--set takes KEY=VALUE, got {pair!r}")
        if key in settings:
            raise PosexportError(f"--set {key} is given twice, as {settings[key]} and {value}")
        settings[key] = value
    return settings


def into(record: type[Config], given: dict[str, str]) -> dict[str, Any]:
    """The settings that the record has, typed."""
    kinds = record.settings()
    return {name: convert(f"--set {name}", given[name], kinds[name]) for name in given.keys() & kinds.keys()}


def refuse_unknown(given: dict[str, str], known: Sequence[str], where: str) -> None:
    """PosexportError for the first setting nobody used, with the closest and all known names, in their order."""
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known)
            it_has = f"{hint} It has" if hint else "it has"
            raise PosexportError(f"--set {key}: {where} has no such setting; {it_has} {', '.join(known)}")
