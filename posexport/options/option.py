"""What is said of an option where it is written: a record's field is an option where its annotation has an `Option`.

The command line, the check of arguments and the signature in Python are made from such records: nothing else lists
options.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from posexport.options.suggest import check_choice

StrPath = str | PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Option:
    """What the type and the default of a field do not say.

    Attributes:
        group: the heading in ``--help``; empty: Python alone has the option.
        help: a sentence or two, for the command line.
        python: the same for callers from Python, where it is not what ``help`` says.
        flag: on the command line, where it is not the field's name.
        metavar: what stands for the value in ``--help``.
        complete: what the shell completes: what ``posexport list`` calls it, or ``settings``.
        words: the words that the option is one of, where installed packages add some.
        least, most: a number's bounds.
        show_default: ``--help`` shows the default, where there is one.
        json: on the command line the value is a JSON document.
    """

    group: str = ""
    help: str = ""
    python: str = ""
    flag: str = ""
    metavar: str | None = None
    complete: str = ""
    words: Callable[[], Sequence[str]] | None = None
    least: int | None = None
    most: int | None = None
    show_default: bool = True
    json: bool = False


class Listed(NamedTuple):
    """An option with the type and the default of its field."""

    name: str
    type: Any
    default: Any
    about: Option

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Of a union its members but None, else the type."""
        union = get_origin(self.type) in (Union, UnionType)
        return tuple(kind for kind in get_args(self.type) if kind is not NoneType) if union else (self.type,)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the option is one of; empty where it may be others."""
        if self.about.words is not None:
            return tuple(self.about.words())
        return next((get_args(kind) for kind in self.kinds if get_origin(kind) is Literal), ())


def options_in(record: type[msgspec.Struct]) -> dict[str, Listed]:
    """The options among a record's fields, by name, in their order."""
    hints = get_type_hints(record, include_extras=True)
    listed = {}
    for field in msgspec.structs.fields(record):
        kind, *metadata = get_args(hints[field.name]) if hasattr(hints[field.name], "__metadata__") else [None]
        about = next((each for each in metadata if isinstance(each, Option)), None)
        if about is not None:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            listed[field.name] = Listed(field.name, kind, default, about)
    return listed


def check_choices(given: msgspec.Struct) -> None:
    """PosexportError where an option that is one of few words is another."""
    for option in options_in(type(given)).values():
        value = getattr(given, option.name)
        if option.choices and isinstance(value, str):
            check_choice(option.name, value, option.choices)


def describe(
    function: Callable[..., object], call: type[msgspec.Struct], record: type[msgspec.Struct], groups: Sequence[str]
) -> None:
    """Give a function the signature and the arguments' docstring that a record of its options has.

    ``call``: the record of all its arguments: the options, behind some of its own. The docstring's line
    "options: OPTIONS" becomes the options', in the order of ``groups``.
    """
    options = sorted(options_in(record).values(), key=lambda option: (*groups, "").index(option.about.group))
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in call.__annotations__.items()
    ]
    parameters += [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in options
    ]
    answer = inspect.signature(function).return_annotation
    function.__signature__ = inspect.Signature(parameters, return_annotation=answer)  # type: ignore[attr-defined]
    lines = [textwrap.fill(f"{each.name}: {_in_python(each.about)}", 112, subsequent_indent="    ") for each in options]
    text = textwrap.indent("\n".join(lines), " " * 8).lstrip()
    function.__doc__ = (function.__doc__ or "").replace("options: OPTIONS", text)


def _in_python(about: Option) -> str:
    """What the help says, in the words of a caller from Python."""
    text = about.python or about.help.replace(" (repeatable)", "")
    return re.sub(r"--([a-z-]+)", lambda match: f"``{match[1].replace('-', '_')}``", text)
