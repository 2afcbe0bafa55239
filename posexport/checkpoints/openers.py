"""Checkpoints as a kind of source: a directory, or a repository of the Hugging Face Hub; and folders of open_clip."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexport.checkpoints import hub
from posexport.sources.registry import Opener

if TYPE_CHECKING:
    from torch import nn

    from posexport.sources.load import LoadOptions
    from posexport.sources.source import Source

#: open_clip's configuration, which names an architecture of that library
OPEN_CLIP_CONFIG = "open_clip_config.json"
_EXAMPLE = "example_inputs and axes are for modules in memory; {argument} names its own inputs"


def _is_checkpoint(argument: "str | nn.Module") -> bool:
    return isinstance(argument, str) and (Path(argument).is_dir() or hub.parse(argument) is not None)


def _open_checkpoint(argument: str, options: "LoadOptions") -> "Source":
    from posexport.checkpoints.checkpoint import checkpoint_source

    stated: dict[str, Any] = {
        "task": options.task,
        "allow_pickle": options.allow_pickle,
        "definition": options.definition or "paper",
    }
    hub_id = hub.parse(argument)
    if hub_id is None:
        return checkpoint_source(Path(argument), name=options.name, label=options.label, **stated)
    snapshot = hub.snapshot(hub_id, allow_pickle=options.allow_pickle)
    return checkpoint_source(
        snapshot.directory,
        name=str(hub_id),
        label=hub_id.name,
        revision=snapshot.commit,
        remarks=[f"{hub_id.name} is read from the Hugging Face cache at commit {snapshot.commit[:12]}"],
        **stated,
    )


CHECKPOINT = Opener(
    kinds=frozenset({"huggingface", "transformers"}),
    accepts=_is_checkpoint,
    open=_open_checkpoint,
    refuses={
        "example_inputs": _EXAMPLE,
        "axes": _EXAMPLE,
        "settings": "--set is for built-in models; the sizes of {argument} are in its config.json",
    },
    priority=2,
)


def _is_open_clip(argument: "str | nn.Module") -> bool:
    """Whether open_clip alone loads a folder; with a config.json it is one of transformers or timm too."""
    if not isinstance(argument, str):
        return False
    return Path(argument, OPEN_CLIP_CONFIG).exists() and not Path(argument, "config.json").exists()


def _open_open_clip(argument: str, options: "LoadOptions") -> "Source":
    from posexport.checkpoints.makers import FOLDERS

    source: Source = FOLDERS["open_clip"](
        Path(argument),
        task=options.task,
        allow_pickle=options.allow_pickle,
        name=options.name,
        label=options.label,
    )
    return source


OPEN_CLIP = Opener(
    kinds=frozenset({"open_clip"}),
    accepts=_is_open_clip,
    open=_open_open_clip,
    refuses={
        "example_inputs": _EXAMPLE,
        "axes": _EXAMPLE,
        "settings": "--set is for built-in models; the sizes of {argument} are in its open_clip_config.json",
        "definition": "--definition is for checkpoints of types that posexport defines; {argument} is open_clip's: "
        "leave it out",
    },
    priority=1,
)
