"""The kinds of source, each an `Opener`; a package adds one by an entry point of the group ``posexport.sources``.

An opener's module must be light: the function `Opener.open` imports what it needs.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posexport.base.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from posexport.base.spec import SourceKind
    from posexport.sources.load_options import LoadOptions
    from posexport.sources.source import Source


@dataclass(frozen=True, kw_only=True)
class Opener:
    """One kind of source.

    Attributes:
        kinds: values of `Source.kind` that it makes.
        accepts: whether an argument names a source of this kind, from its type, its spelling and the file system alone.
        open: loads the source; PosexportError if it cannot be loaded.
        refuses: options that do not fit, each with a sentence, in which ``{argument}`` is the source's name.
        priority: the opener with the lowest number comes first; the last one accepts everything.
    """

    kinds: "frozenset[SourceKind]"
    accepts: "Callable[[str | nn.Module], bool]"
    open: "Callable[[Any, LoadOptions], Source]"
    refuses: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0


_EXAMPLE = "example_inputs and axes are for modules in memory; {argument} names its own inputs"
#: `Opener.refuses` of sources that name their inputs
NO_EXAMPLE: Mapping[str, str] = {"example_inputs": _EXAMPLE, "axes": _EXAMPLE}
#: and of sources without files of weights
NO_WEIGHTS: Mapping[str, str] = {
    "drop_weights": "--drop-weights is for checkpoints of transformers; {argument} is none: leave it out",
    "adapters": "--adapters is for checkpoints of transformers; {argument} is none: leave it out",
}

OPENERS: Registry[Opener] = Registry(
    "sources",
    Opener,
    {
        "module": "posexport.modules.openers:MODULE",
        "python-file": "posexport.modules.openers:PYTHON_FILE",
        "open_clip": "posexport.folders.openers:OPEN_CLIP",
        "checkpoint": "posexport.checkpoints.openers:CHECKPOINT",
        "builtin": "posexport.sources.openers:BUILTIN",
    },
)


@functools.cache
def openers() -> tuple[Opener, ...]:
    """All kinds of source, in the order in which arguments are offered to them."""
    return tuple(sorted((OPENERS[name] for name in OPENERS.names), key=lambda opener: opener.priority))


def opener_of(argument: "str | nn.Module") -> Opener:
    """The first kind of source that accepts ``argument``."""
    return next(opener for opener in openers() if opener.accepts(argument))
