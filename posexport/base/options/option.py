"""Records of options: a field is an option if its annotation contains an `Option`.

The command line, the checks of arguments and the signatures in Python are generated from these records.
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

StrPath = str | PathLike[str]
#: headings in ``--help``
SOURCE, LENGTHS, GRAPH, PRECISION = "Source", "Lengths and KV cache", "Graph", "Precision"
OUTPUT, PROOF, RULES, RUNTIME, EXPERT = "Output", "Proof", "Rules", "Runtime", "Expert options"

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class Option:
    """The part of an option's description that the field's type and default do not contain.

    Attributes:
        group: the heading in ``--help``; empty for an option that only Python has.
        help: a sentence or two for the command line.
        python: the same for Python, if ``help`` does not fit.
        flag: the name on the command line, if it differs from the field's.
        metavar: the placeholder of the value in ``--help``.
        complete: the kind of name that the shell completes (as in ``posexport list``), or ``settings``.
        words: the accepted words, if installed packages add some.
        least, most: bounds of a number.
        show_default: whether ``--help`` shows the default.
        json: whether the command line reads the value as a JSON document.
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
        """The members of a union without None, or the type itself."""
        union = get_origin(self.type) in (Union, UnionType)
        return tuple(kind for kind in get_args(self.type) if kind is not NoneType) if union else (self.type,)

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted words, of a ``Literal`` or of ``words``; empty for other types."""
        if self.about.words is not None:
            return tuple(self.about.words())
        return next((get_args(kind) for kind in self.kinds if get_origin(kind) is Literal), ())


def options_in(record: type[msgspec.Struct]) -> dict[str, Listed]:
    """The options among a record's fields, by name, in the order of the fields."""
    hints = get_type_hints(record, include_extras=True)
    listed = {}
    for field in msgspec.structs.fields(record):
        kind, *metadata = get_args(hints[field.name]) if hasattr(hints[field.name], "__metadata__") else [None]
        about = next((each for each in metadata if isinstance(each, Option)), None)
        if about is not None:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            listed[field.name] = Listed(field.name, kind, default, about)
    return listed


def taking(record: Callable[_P, _T]) -> Callable[[Callable[[_T], _R]], Callable[_P, _R]]:
    """Decorator: calls a function of one record with the record's fields as arguments, as type checkers see them."""

    def decorator(function: Callable[[_T], _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            __tracebackhide__ = True  # pytest shows the caller's line
            return function(record(*args, **kwargs))

        return call

    return decorator


def describe(
    function: Callable[..., object], call: type[msgspec.Struct], record: type[msgspec.Struct], groups: Sequence[str]
) -> None:
    """Set a function's signature and complete its docstring from a record of options.

    Args:
        function: its docstring has the line "options: OPTIONS", which the descriptions of the options replace.
        call: the record of all arguments: ``record`` with the positional arguments added.
        record: the options, which become keyword arguments.
        groups: headings; options are described in this order.
    """
    options = sorted(options_in(record).values(), key=lambda option: (*groups, "").index(option.about.group))
    defaults = dict(zip(reversed(call.__struct_fields__), reversed(call.__struct_defaults__), strict=False))
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=kind,
        )
        for name, kind in call.__annotations__.items()
    ]
    parameters += [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in options
    ]
    returned = inspect.signature(function).return_annotation
    function.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    lines = [textwrap.fill(f"{each.name}: {_in_python(each.about)}", 112, subsequent_indent="    ") for each in options]
    text = textwrap.indent("\n".join(lines), " " * 4).lstrip()
    # Python 3.13 compiles docstrings without their indentation
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("options: OPTIONS", text)


def _in_python(about: Option) -> str:
    """An option's description for Python: ``python``, or ``help`` without the spelling of the command line."""
    text = about.python or about.help.replace(" (repeatable)", "")
    return re.sub(r"--([a-z-]+)", lambda match: f"``{match[1].replace('-', '_')}``", text)
