"""Modules as kinds of source: in memory, or made by a function of a Python file."""

from typing import TYPE_CHECKING

from posexport.errors import PosexportError
from posexport.sources.registry import NO_EXAMPLE, NO_WEIGHTS, Opener

if TYPE_CHECKING:
    from torch import nn

    from posexport.sources.load_options import LoadOptions
    from posexport.sources.source import Source

_IN_MEMORY = (
    "settings are for built-in models, definition, drop_weights and adapters for checkpoints, not for modules; leave "
    "them out"
)


def _open_module(module: "nn.Module", options: "LoadOptions") -> "Source":
    from posexport.modules.live_module import module_source
    from posexport.modules.with_cache import with_cache

    source = module_source(module, options.example_inputs, options.axes, options.bundle_inputs, options.shown)
    return with_cache(source, options.task)


def names_a_factory(argument: "str | nn.Module") -> bool:
    """Whether ``argument`` is ``file.py:factory``."""
    path, colon, factory = argument.rpartition(":") if isinstance(argument, str) else ("", "", "")
    return bool(colon) and path.endswith(".py") and factory.isidentifier()


def _open_python_file(argument: str, options: "LoadOptions") -> "Source":
    from posexport.modules.python_file import python_source

    if not names_a_factory(argument):
        raise PosexportError(f"{argument} names no factory; write {argument}:FACTORY")
    return python_source(argument, options.bundle_inputs, options.task, options.shown)


MODULE = Opener(
    kinds=frozenset({"python"}),
    accepts=lambda argument: not isinstance(argument, str),
    open=_open_module,
    refuses={"settings": _IN_MEMORY, "definition": _IN_MEMORY, "drop_weights": _IN_MEMORY, "adapters": _IN_MEMORY},
)
PYTHON_FILE = Opener(
    kinds=frozenset({"python"}),
    accepts=lambda argument: names_a_factory(argument) or str(argument).endswith(".py"),
    open=_open_python_file,
    refuses={
        **NO_EXAMPLE,
        **NO_WEIGHTS,
        "definition": "--definition is for checkpoints; {argument} is none: leave it out",
        "settings": "--set is for built-in models; {argument} decides for itself",
    },
    priority=1,
)
