"""Loads a source of any kind from its name, or from a module in memory."""

from typing import TYPE_CHECKING

from posexport.errors import PosexportError
from posexport.sources.lazy_parameters import materialize
from posexport.sources.load_options import LoadOptions
from posexport.sources.registry import opener_of

if TYPE_CHECKING:
    from torch import nn

    from posexport.sources.source import Source


def load_source(argument: "str | nn.Module", options: LoadOptions, *, lazy: bool = False) -> "Source":
    """A built-in name, ``file.py:factory``, a checkpoint directory, a Hub id ``org/name``, or a module in memory.

    ``lazy``: its parameters may be lazy (`posexport.sources.lazy_parameters`).

    Raises:
        PosexportError: the source cannot be loaded.
    """
    opener = opener_of(argument)
    for option, sentence in opener.refuses.items():
        if not _is_default(getattr(options, option)):
            raise PosexportError(sentence.format(argument=argument))
    source = opener.open(argument, options)
    if not lazy:
        materialize(source.module.parameters())
    return source


def _is_default(value: object) -> bool:
    """Whether an option asks for nothing. Arrays are not compared: they have no single truth value."""
    return value is None or (isinstance(value, bool | str | tuple) and value in (False, (), "paper"))
