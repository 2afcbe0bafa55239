"""Files of a checkpoint that a bundle takes over."""

from pathlib import Path

from posexport.checkpoints.copied_names import BESIDE, OF_MODULE, TEMPLATES, TOP
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.hub_cache import module_paths


def copied(files: Directory, below: str) -> dict[str, Path]:
    """The files that are there, by their names in the bundle. ``below``: the folder of the weights, or empty."""
    templates = sorted(path.name for path in (files.path / below / TEMPLATES).glob("*.jinja"))
    beside = (*BESIDE, *(f"{TEMPLATES}/{name}" for name in templates))
    sources = {name: f"{below}{name}" for name in beside} | {name: name for name in (*TOP, *_of_modules(files, below))}
    paths = {name: files.find(stored) for name, stored in sources.items()}
    return {name: path for name, path in paths.items() if path is not None}


def _of_modules(files: Directory, below: str) -> list[str]:
    """Files in the folders that modules.json names, but for the transformer's."""
    modules = files.json("modules.json") if files.find("modules.json") is not None else None
    folders = [f"{path}/" for path in module_paths(modules) if path]
    return [folder + name for folder in folders if folder != below for name in OF_MODULE]
