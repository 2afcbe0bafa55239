"""Records of settings, composed of smaller ones, with one flat name for every value.

A layer takes the record that it needs (`FeedForwardConfig`, `NormConfig` ...); people type flat names on the command
line (``--set norm_kind=rms``). `Config.of` and `Config.settings` go from one to the other.
"""

import math
import typing
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from posexport.errors import PosexportError


def named(flat: str, default: Any) -> Any:
    """A field whose flat name is not its own."""
    return field(default=default, metadata={"flat": flat})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Frozen settings. Fields that are records themselves have a default, which flat settings change in part."""

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The annotation of every value, by its flat name."""
        known: dict[str, Any] = {}
        hints = typing.get_type_hints(cls)
        for each in fields(cls):
            kind = hints[each.name]
            nested = isinstance(kind, type) and issubclass(kind, Config)
            known |= kind.settings() if nested else {each.metadata.get("flat", each.name): kind}
        return known

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """The record with these values by their flat names, defaults elsewhere.

        Raises:
            PosexportError: a value that does not fit.
            TypeError: a name that is no setting.
        """
        if unknown := settings.keys() - cls.settings().keys():
            raise TypeError(f"{cls.__name__} has no setting {', '.join(sorted(unknown))}")
        return cls().changed(**settings)

    def changed(self, **settings: Any) -> Self:
        """The record with other values by their flat names; names that it does not have change nothing."""
        changes: dict[str, Any] = {}
        for each in fields(self):
            value, flat = getattr(self, each.name), each.metadata.get("flat", each.name)
            if isinstance(value, Config):
                changes[each.name] = value.changed(**settings)
            elif flat in settings:
                changes[each.name] = settings[flat]
        return replace(self, **changes)


def at_least(least: int, **values: int | None) -> None:
    """PosexportError for a value below ``least``; None is any."""
    for name, value in values.items():
        if value is not None and value < least:
            raise PosexportError(f"{name} must be at least {least}, got {value}")


def above_zero(**values: float) -> None:
    """PosexportError for a value that is no finite number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise PosexportError(f"{name} must be a number above 0, got {value}")


def above_zero_or_none(**values: float | None) -> None:
    """PosexportError for a value that is neither none nor a finite number above 0."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise PosexportError(f"{name} must be a number above 0 (or none), got {value}")


def fraction(**values: float) -> None:
    """PosexportError for a value that is not from 0 to below 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise PosexportError(f"{name} must be from 0 to below 1, got {value}")
