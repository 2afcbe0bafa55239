"""Checkpoints as a kind of source: a directory, or a repository of the Hugging Face Hub."""

from pathlib import Path
from typing import TYPE_CHECKING

from posexport.checkpoints import hub
from posexport.sources.registry import NO_EXAMPLE, Opener

if TYPE_CHECKING:
    from torch import nn

    from posexport.sources.load_options import LoadOptions
    from posexport.sources.source import Source


def _is_checkpoint(argument: "str | nn.Module") -> bool:
    return isinstance(argument, str) and (Path(argument).is_dir() or hub.parse(argument) is not None)


def _open_checkpoint(argument: str, options: "LoadOptions") -> "Source":
    from posexport.checkpoints import unread_files
    from posexport.checkpoints.checkpoint import Place, checkpoint_source

    directory, place = Path(argument), Place(name=options.name, label=options.label)
    hub_id = hub.parse(argument)
    if hub_id is not None:
        snapshot = hub.snapshot(hub_id, allow_pickle=options.allow_pickle)
        directory, name = snapshot.directory, hub_id.name
        read = f"{name} is read from the Hugging Face cache at commit {snapshot.commit[:12]}"
        remarks = [read, *unread_files.remarks(snapshot.left)]
        place = Place(name=str(hub_id), label=name, revision=snapshot.commit, remarks=remarks)
    return checkpoint_source(
        directory,
        task=options.task,
        allow_pickle=options.allow_pickle,
        definition=options.definition or "paper",
        drop_weights=options.drop_weights,
        adapters={name: Path(folder) for name, folder in options.adapters},
        place=place,
    )


CHECKPOINT = Opener(
    kinds=frozenset({"huggingface", "transformers"}),
    accepts=_is_checkpoint,
    open=_open_checkpoint,
    refuses={
        **NO_EXAMPLE,
        "settings": "--set is for built-in models; the sizes of {argument} are in its config.json",
    },
    priority=2,
)
