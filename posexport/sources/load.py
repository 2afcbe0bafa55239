"""Loads a source of any kind from its name, or from a module in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from posexport.errors import PosexportError
from posexport.options.settings import pairs
from posexport.sources.registry import opener_of

if TYPE_CHECKING:
    from torch import nn

    from posexport.options.recipe import DefinitionName
    from posexport.sources.source import Source
    from posexport.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The options of a source; None: not stated by the user, so that a recorded recipe's value applies.

    ``settings``: the ``--set`` pairs.
    ``definition``: of a checkpoint, as in `posexport.options.recipe.Recipe`; None: as recorded, else ``paper``.
    ``name`` and ``label``: what the source of a checkpoint's folder is called, in place of its path and its type.
    ``example_inputs`` and ``axes`` describe the inputs of a module in memory (`posexport.modules.live_module`).
    ``bundle_inputs``: the inputs of a bundle to compare with, where the user gives no example. ``steps``: numbers that
    the sizes of a module's axes are multiples of, beside those that its calls show.
    """

    task: str | None = None
    settings: tuple[str, ...] = ()
    allow_pickle: bool = False
    definition: "DefinitionName | None" = None
    name: str | None = None
    label: str | None = None
    example_inputs: Any = None
    axes: Any = None
    bundle_inputs: Sequence["InputSpec"] = ()
    steps: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, options: object) -> "LoadOptions":
        """Selects the options of a source from a record that has more fields, for example a conversion's."""
        known = {field.name: getattr(options, field.name) for field in fields(cls) if hasattr(options, field.name)}
        return cls(**{**known, "settings": pairs(known["settings"])})


def load_source(argument: "str | nn.Module", options: LoadOptions) -> "Source":
    """A built-in name, ``file.py:factory``, a checkpoint directory, a Hub id ``org/name``, or a module in memory.

    Raises:
        PosexportError: the source cannot be loaded.
    """
    opener = opener_of(argument)
    for option, sentence in opener.refuses.items():
        if not _is_default(getattr(options, option)):
            raise PosexportError(sentence.format(argument=argument))
    return opener.open(argument, options)


def _is_default(value: object) -> bool:
    """Whether an option asks for nothing. Arrays are not compared: they have no single truth value."""
    return value is None or (isinstance(value, bool | str | tuple) and value in (False, (), "paper"))
