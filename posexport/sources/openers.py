"""Built-in models as a kind of source: it comes last, so it refuses names that no kind knows."""

from pathlib import Path
from typing import TYPE_CHECKING

from posexport.errors import PosexportError
from posexport.sources.registry import NO_EXAMPLE, NO_WEIGHTS, Opener

if TYPE_CHECKING:
    from posexport.sources.load_options import LoadOptions
    from posexport.sources.source import Source


def _open_builtin(argument: str, options: "LoadOptions") -> "Source":
    from posexport.sources.builtin import builtin_source

    if Path(argument).exists():
        raise PosexportError(
            f"{argument} is a file; a checkpoint is a directory with config.json and model.safetensors"
        )
    if "/" in argument or argument.startswith("."):
        raise PosexportError(
            f"no such directory: {argument}; give one with config.json and model.safetensors, a built-in model "
            "(posexport list models) or file.py:factory"
        )
    return builtin_source(argument, task=options.task, settings_given=options.settings)


BUILTIN = Opener(
    kinds=frozenset({"builtin"}),
    accepts=lambda argument: isinstance(argument, str),
    open=_open_builtin,
    refuses={
        **NO_EXAMPLE,
        **NO_WEIGHTS,
        "definition": "--definition is for checkpoints; {argument} is none: leave it out",
    },
    priority=3,
)
