"""Records of settings, composed of smaller ones, with one flat name for every value.

A layer takes the record that it needs (`FeedForwardConfig`, `NormConfig` ...); people type flat names on the command
line (``--set norm_kind=rms``). `Config.of` and `Config.settings` go from one to the other.
"""

import typing
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from posexport.base.options.check import check_values


def named(flat: str, default: Any) -> Any:
    """A field with the name ``flat`` among flat settings."""
    return field(default=default, metadata={"flat": flat})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Frozen settings. Fields that are records themselves have a default, which flat settings change in part.

    Raises PosexportError for a value that is not of its annotated type (`posexport.base.options.check`).
    """

    def __post_init__(self) -> None:
        flat = {spec.name: spec.metadata.get("flat", spec.name) for spec in fields(self)}
        types = typing.get_type_hints(type(self), include_extras=True)
        check_values("", {flat[name]: types[name] for name in flat}, {flat[name]: getattr(self, name) for name in flat})

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The annotation of every value, by its flat name."""
        known: dict[str, Any] = {}
        hints = typing.get_type_hints(cls)
        for spec in fields(cls):
            kind = hints[spec.name]
            nested = isinstance(kind, type) and issubclass(kind, Config)
            known |= kind.settings() if nested else {spec.metadata.get("flat", spec.name): kind}
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
        for spec in fields(self):
            value, flat = getattr(self, spec.name), spec.metadata.get("flat", spec.name)
            if isinstance(value, Config):
                changes[spec.name] = value.changed(**settings)
            elif flat in settings:
                changes[spec.name] = settings[flat]
        return replace(self, **changes)
