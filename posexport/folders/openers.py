"""Folders of other libraries as kinds of source."""

from pathlib import Path
from typing import TYPE_CHECKING

from posexport.folders.kinds import OPEN_CLIP_CONFIG
from posexport.sources.registry import NO_EXAMPLE, NO_WEIGHTS, Opener

if TYPE_CHECKING:
    from torch import nn

    from posexport.sources.load_options import LoadOptions
    from posexport.sources.source import Source


def _is_open_clip(argument: "str | nn.Module") -> bool:
    """Whether open_clip alone loads a folder; with a config.json it is one of transformers or timm too."""
    if not isinstance(argument, str):
        return False
    return Path(argument, OPEN_CLIP_CONFIG).exists() and not Path(argument, "config.json").exists()


def _open_open_clip(argument: str, options: "LoadOptions") -> "Source":
    from posexport.folders.open_clip import open_clip_source

    return open_clip_source(
        Path(argument),
        task=options.task,
        allow_pickle=options.allow_pickle,
        name=options.name,
        label=options.label,
    )


OPEN_CLIP = Opener(
    kinds=frozenset({"open_clip"}),
    accepts=_is_open_clip,
    open=_open_open_clip,
    refuses={
        **NO_EXAMPLE,
        **NO_WEIGHTS,
        "settings": "--set is for built-in models; the sizes of {argument} are in its open_clip_config.json",
        "definition": "--definition is for checkpoints of types that posexport defines; {argument} is open_clip's: "
        "leave it out",
    },
    priority=1,
)
