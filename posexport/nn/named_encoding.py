"""An encoding by its name, with the sizes of its layer and settings as Python values."""

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

from posexport.base.options.settings import convert
from posexport.encodings.build import lookup
from posexport.encodings.build import settings as settings_of
from posexport.encodings.compose import ByLayer
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError


def encoding_of(
    encoding: str | Encoding, settings: Mapping[str, Any] | None, sizes: Mapping[str, int | bool]
) -> Encoding:
    """A new encoding for a name, or the object itself, which must have the layer's sizes.

    ``sizes``: of the layer (``hidden``, ``heads``, ``head_size``); ``settings`` take precedence over other
    values, for example ``bidirectional``.

    Raises:
        PosexportError: an unknown name or setting, a value that does not fit, an object of other sizes.
    """
    if isinstance(encoding, Encoding):
        if settings:
            raise PosexportError(
                f"settings={dict(settings)!r} are for an encoding by name; the object {encoding.name} has its own"
            )
        return _fitting(encoding, sizes)
    if not isinstance(encoding, str):
        raise PosexportError(
            f"encoding must be the name of an encoding (posexport list encodings) or an Encoding, got {encoding!r:.60}"
        )
    # by name: the layer's sizes, and settings, which may not contradict them
    entry = lookup(encoding)
    known = settings_of(entry)
    arguments = {key: value for key, value in sizes.items() if key in known}
    for key, value in (settings or {}).items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            takes = ", ".join(known) or "none"
            raise PosexportError(f"the encoding {encoding} has no setting {key!r}; it has {takes}{hint}")
        checked = _value(f"the encoding {encoding}: {key}", value, known[key][0])
        if key in ("hidden", "heads", "head_size") and key in arguments and checked != arguments[key]:
            raise PosexportError(
                f"the encoding {encoding}: {key} is that of the layer, {arguments[key]}, got {checked!r}; leave it out "
                "of settings"
            )
        arguments[key] = checked
    if missing := [key for key, (_, required) in known.items() if required and key not in arguments]:
        raise PosexportError(
            f"the encoding {encoding} needs {missing[0]}, which this layer does not know; give it in settings"
        )
    return entry.cls(**arguments)


def _fitting(encoding: Encoding, sizes: Mapping[str, int | bool]) -> Encoding:
    """The object, if it is one layer's and has the layer's sizes."""
    if isinstance(encoding, ByLayer):
        raise PosexportError(
            "this Encoding holds one encoding a layer: give each layer its own, encoding.in_layer(index)"
        )
    for name in ("hidden", "heads", "head_size"):
        parameter = encoding.parameters_given.get(name)
        if name in sizes and parameter is not None and parameter != sizes[name]:
            raise PosexportError(
                f"the encoding {encoding.name} was made for {name}={parameter}, the layer has {sizes[name]}"
            )
    return encoding


def _value(what: str, value: Any, kind: Any) -> Any:
    """``value`` where it is one of the annotation ``kind``; a text is read as on the command line."""
    if isinstance(value, str):
        return convert(what, value, kind)
    choices = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    for choice in choices:
        base_type = typing.get_origin(choice) or choice
        if base_type is types.NoneType and value is None:
            return None
        if base_type is bool and isinstance(value, bool):
            return value
        if base_type in (int, float) and type(value) is int:
            return value if base_type is int else float(value)
        if base_type is float and type(value) is float:
            return value
    kinds = " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices)
    raise PosexportError(f"{what} must be {kinds}, got {value!r:.60}")
