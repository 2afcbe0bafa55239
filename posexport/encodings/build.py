"""From a name, a model's sizes and the text of ``--set`` options to an encoding."""

from collections.abc import Mapping
from typing import Any

from posexport.encodings.encoding import ENCODINGS, Encoding, Entry
from posexport.errors import PosexportError
from posexport.options.settings import convert
from posexport.options.suggest import did_you_mean

#: Constructor arguments that ``--beyond`` sets, never ``--set``.
_NOT_SETTINGS = ("beyond", "trained")


def build(name: str, sizes: Mapping[str, int], texts: Mapping[str, str]) -> tuple[Encoding, set[str]]:
    """The encoding called ``name``, and the names in ``sizes`` and ``texts`` that are arguments of its constructor.

    ``texts`` are converted to the constructor's types, and take precedence over ``sizes``. Names that it does not know
    are the caller's to report. Raises PosexportError for an unknown encoding, a text that is no value of its argument,
    or an argument without a default that is in neither.
    """
    entry = lookup(name)
    arguments: dict[str, Any] = {}
    for key, (kind, required) in settings(entry).items():
        if key in texts:
            arguments[key] = convert(f"{name}: {key}", texts[key], kind)
        elif key in sizes:
            arguments[key] = sizes[key]
        elif required:
            raise PosexportError(f"the encoding {name} needs {key}: add --set {key}=VALUE")
    return entry.cls(**arguments), set(arguments)


def lookup(name: str) -> Entry:
    """The registered encoding called ``name``; PosexportError names the closest."""
    entry = ENCODINGS.get(name)
    if entry is None:
        hint = did_you_mean(name, ENCODINGS.names, "see posexport list encodings")
        raise PosexportError(f"unknown encoding {name!r}; {hint}")
    return entry


def settings(entry: Entry) -> dict[str, tuple[Any, bool]]:
    """An encoding's ``--set`` keys: each with its type and whether it is required."""
    return {
        name: (parameter.annotation, parameter.default is parameter.empty)
        for name, parameter in entry.cls.arguments().items()
        if name not in _NOT_SETTINGS
    }
