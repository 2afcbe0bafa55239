"""Folders of other libraries that are opened as checkpoints.

A package adds a kind by an entry point of the group ``posexport.folders``, and what makes its models by
``posexport.makers``.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from posexport.base.registry import Registry
from posexport.checkpoints.directory import Directory


class Opened(NamedTuple):
    """A folder, its configuration (a `posexport.checkpoints.config.Config`), and files for the bundle by name."""

    files: Directory
    config: Any
    named: Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class FolderKind:
    """A library's folders, where they differ from those of transformers.

    Attributes:
        config: the name of the configuration, in place of config.json; empty: config.json.
        typed: the content of a configuration with the type, if it is of this kind.
        remarks: sentences on a configuration, which the first argument names.
        decides: further files that decide the model.
        bundle_files: the files of the bundle by name.
        library: what transformers needs for the model.
        alone: a file of folders that are no checkpoints but a kind of source (`posexport.sources.registry`).
    """

    config: str = ""
    typed: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    remarks: Callable[[str, Mapping[str, Any]], list[str]] = lambda *_: []
    decides: Sequence[str] = ()
    bundle_files: Callable[[Opened], dict[str, Path]] = lambda opened: dict(opened.named)
    library: str = ""
    alone: str = ""


#: by the type of the configuration, or a name of the kind
FOLDERS: Registry[FolderKind] = Registry(
    "folders",
    FolderKind,
    {
        "timm_wrapper": "posexport.folders.kinds:TIMM",
        "chronos": "posexport.folders.kinds:CHRONOS",
        "gliner": "posexport.folders.kinds:GLINER",
        "open_clip": "posexport.folders.kinds:OPEN_CLIP",
        "model2vec": "posexport.checkpoints.model2vec_folder:KIND",
    },
)


@functools.cache
def folder_kinds() -> dict[str, FolderKind]:
    """Returns all kinds by name."""
    return {name: FOLDERS[name] for name in FOLDERS.names}


def config_among(names: Collection[str], below: str) -> str:
    """The name of the configuration among files; ``below``: the folder of the weights, empty or ending in ``/``."""
    usual = f"{below}config.json"
    further = (kind.config for kind in folder_kinds().values() if kind.config in names)
    return usual if usual in names else next(further, usual)


def config_in(files: Directory, below: str) -> str:
    """The name of the configuration in a folder."""
    known = [f"{below}config.json", *(kind.config for kind in folder_kinds().values() if kind.config)]
    return config_among([name for name in known if files.find(name) is not None], below)


def with_type(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` of the configuration ``name`` with the type, which these libraries call otherwise."""
    typed = dict(content)
    for kind in folder_kinds().values():
        if kind.config in ("", name):
            typed = kind.typed(typed)
    return typed
