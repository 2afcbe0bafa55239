"""Folders of the library gliner, which have a ``gliner_config.json`` and no ``config.json``."""

from collections.abc import Mapping
from typing import Any

from posexport.checkpoints.directory import Directory

CONFIG = "gliner_config.json"
#: posexport's type of these folders
TYPE = "gliner"
#: a folder for the configuration and the tokenizer of an encoder that the file only names
ENCODER = "encoder/"


def config_name(files: Directory, below: str) -> str:
    """The name of the configuration in a folder; ``below``: the folder of the weights, empty or ending in ``/``."""
    usual = f"{below}config.json"
    return CONFIG if files.find(usual) is None and files.find(CONFIG) is not None else usual


def with_type(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` of the file ``name`` with the type, for which the library has names of its own."""
    return {**content, "model_type": TYPE} if name == CONFIG else dict(content)
