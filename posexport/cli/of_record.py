"""Command-line options generated from the fields of a record (`posexport.base.options.option`)."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click
import msgspec

from posexport.base.options.option import Listed, options_in
from posexport.base.targets.provider_options import as_mapping
from posexport.cli import complete
from posexport.errors import PosexportError

_PYTHON = {"True": True, "False": False, "None": None}
Record = TypeVar("Record", bound=msgspec.Struct)
#: a decorator of commands
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def one_of(record: type[msgspec.Struct], name: str) -> Decorator:
    """The option for the field ``name`` of a record."""
    listed = options_in(record)[name]
    about, multiple = listed.about, _is_multiple(listed) and not listed.about.json
    settings: dict[str, Any] = {"help": about.help, "metavar": about.metavar, "multiple": multiple}
    if about.complete:
        first = [listed.default] if isinstance(listed.default, str) else []
        settings["shell_complete"] = complete.words(about.complete, first)
    if _origins(listed) == {Mapping}:
        pairs: Callable[[Sequence[str]], Mapping[str, Any]] = as_mapping
        if about.json:
            pairs = functools.partial(json_pairs, f"--{about.flag}")
        settings |= {"multiple": True, "callback": lambda _, __, value: pairs(value)}
    elif bool in listed.kinds and not about.json:
        settings |= {"is_flag": True, "callback": _negated if listed.default else None}
        if listed.default is None:
            settings["default"] = None  # an absent flag is no False
    else:
        several = (listed.default,) if listed.default else ()
        settings |= {"type": _type(listed), "default": several if multiple else listed.default}
        settings["show_default"] = about.show_default and bool(listed.default)
    return click.option(f"--{about.flag or name.replace('_', '-')}", name, **settings)


def json_pairs(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Values of KEY=VALUE pairs by name: JSON, Python's True, False and None, or a text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise PosexportError(f"{flag} {pair} has no value; give KEY=VALUE")
        try:
            values[name] = _PYTHON[value] if value in _PYTHON else json.loads(value)
        except ValueError:
            values[name] = value
    return values


def all_of(record: type[msgspec.Struct]) -> Decorator:
    """Adds all options of a record that belong on the command line."""

    def decorator(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, listed in reversed(options_in(record).items()):
            if listed.about.group:
                command = one_of(record, name)(command)
        return command

    return decorator


def taken(record: type[Record], choices: dict[str, Any]) -> Record:
    """The record with its fields' values, which leave ``choices``."""
    return record(**{name: choices.pop(name) for name in record.__struct_fields__})


def groups(
    record: type[msgspec.Struct], order: Sequence[str], more: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Parameter names by heading; ``more`` are parameters that are no fields of the record and come first."""
    named = options_in(record)
    return {
        group: (*more.get(group, ()), *(name for name, listed in named.items() if listed.about.group == group))
        for group in order
    }


def _is_multiple(listed: Listed) -> bool:
    return Sequence in _origins(listed)


def _origins(listed: Listed) -> set[Any]:
    """The generic containers among the types that a field accepts."""
    return {get_origin(kind) for kind in listed.kinds} & {Sequence, Mapping}


def _type(listed: Listed) -> Any:
    """click's type for the value of an option."""
    about = listed.about
    if about.json:
        return _Json()
    kinds = {inner for kind in listed.kinds for inner in (kind, *get_args(kind))}
    if listed.choices:
        return click.Choice(listed.choices)
    if any(get_origin(kind) is PathLike for kind in kinds):
        return click.Path(path_type=Path)
    if int in kinds:
        return int if about.least is None else click.IntRange(about.least, about.most)
    return float if float in kinds else str


class _Json(click.ParamType):  # type: ignore[type-arg]
    """An option with a JSON document as its value."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return msgspec.json.decode(value) if isinstance(value, str) else value
        except msgspec.DecodeError as err:
            self.fail(f"{value!r} is no JSON: {err}", param, ctx)


def _negated(_ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    """The value of a field with the default True, from its negating flag."""
    return not value
