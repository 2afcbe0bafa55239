"""Folders of the library gliner, which have a ``gliner_config.json`` and no ``config.json``."""

from collections.abc import Collection, Mapping
from typing import Any

from posexport.checkpoints.directory import Directory

CONFIG = "gliner_config.json"
#: posexport's type of these folders
TYPE = "gliner"
#: a folder for the configuration and the tokenizer of an encoder that the file only names
ENCODER = "encoder/"


def config_name(files: Directory, below: str) -> str:
    """The name of the configuration in a folder; ``below``: the folder of the weights, empty or ending in ``/``."""
    return config_among([name for name in (f"{below}config.json", CONFIG) if files.find(name) is not None], below)


def config_among(names: Collection[str], below: str) -> str:
    """The name of the configuration among the files ``names`` of a repository."""
    usual = f"{below}config.json"
    return CONFIG if usual not in names and CONFIG in names else usual


def with_type(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` of the file ``name`` with the type, for which the library has names of its own."""
    return {**content, "model_type": TYPE} if name == CONFIG else dict(content)
