"""Loads a source of any kind from its name, or from a module in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posexport.errors import PosexportError
from posexport.sources.registry import opener_of

if TYPE_CHECKING:
    from torch import nn

    from posexport.options.recipe import Through
    from posexport.sources.source import Source
    from posexport.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a user may say about a source. ``settings`` are the ``--set`` pairs.

    ``as_transformers``: of a checkpoint, compute what transformers' code does where it differs from the paper.
    ``through``: whose model of a checkpoint, where posexport defines its type too.
    ``example_inputs`` and ``axes`` tell the inputs of a module in memory (`posexport.modules.live_module`);
    ``bundle_inputs``, those of a bundle to compare with, tell them where the user does not.
    """

    task: str | None = None
    settings: tuple[str, ...] = ()
    allow_pickle: bool = False
    as_transformers: bool = False
    through: "Through | None" = None
    example_inputs: Any = None
    axes: Any = None
    bundle_inputs: Sequence["InputSpec"] = ()


def load_source(argument: "str | nn.Module", options: LoadOptions) -> "Source":
    """A built-in name, ``file.py:factory``, a checkpoint directory, a Hub id ``org/name``, or a module in memory.

    Raises:
        PosexportError: what is wrong with the source, in one sentence.
    """
    opener = opener_of(argument)
    for option, sentence in opener.refuses.items():
        if getattr(options, option) not in (None, False, ()):
            raise PosexportError(sentence.format(argument=argument))
    return opener.open(argument, options)
