"""Reads the local Hugging Face cache without huggingface_hub: ``models--org--name/snapshots/<commit>/<file>``.

The layout is documented in huggingface_hub's guide "Understand caching"; ``refs/<revision>`` holds the commit that a
branch or tag pointed to when it was last downloaded, files of a snapshot are links into ``blobs``.
"""

import json
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Any

from posexport.checkpoints.folder_kind import config_among

_COMMIT = re.compile("[0-9a-f]{40}")
#: preferred first; the second is a pickle
_WEIGHTS = (("model", ".safetensors"), ("pytorch_model", ".bin"))
#: FlagEmbedding's projections to weights and to vectors of tokens (BGE-M3), pickles
BGE_M3 = ("sparse_linear.pt", "colbert_linear.pt")
#: heads of model2vec, and of SetFit, with what SetFit says of them
_HEADS = (("head.safetensors",), ("config_setfit.json", "model_head.safetensors"))


def cache_directory() -> Path:
    """Where huggingface_hub keeps repositories: HF_HUB_CACHE, else ``hub`` below HF_HOME."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(cache)).expanduser()


def lookup(name: str, revision: str, *, allow_pickle: bool) -> Path | None:
    """The snapshot of a repository ``org/name`` that has a configuration and all weights; None where there is none."""
    entry = cache_directory() / f"models--{name.replace('/', '--')}"
    commit = revision if _COMMIT.fullmatch(revision) else _text(entry / "refs" / revision)
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    snapshot = entry / "snapshots" / commit
    try:
        names = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()}
    except OSError:
        return None
    folder = weights_folder(lambda file: _json(snapshot / file), names)
    weights = weight_files(lambda file: _json(snapshot / file), names, folder, allow_pickle=allow_pickle)
    projections = projection_weights(lambda file: _json(snapshot / file), names, allow_pickle=allow_pickle)
    complete = (
        weights is not None and None not in projections and names.issuperset({config_among(names, folder), *weights})
    )
    return snapshot if complete else None


def weights_folder(read_json: Callable[[str], Any], names: Collection[str]) -> str:
    """The folder of the weights, empty or ending in ``/``: what modules.json says, else the top."""
    modules = read_json("modules.json") if "modules.json" in names else None
    paths = module_paths(modules)
    return f"{paths[0]}/" if paths and paths[0] else ""


def module_paths(modules: Any) -> list[str]:
    """The folders in a modules.json, of those that stay inside the repository; empty for the top."""
    paths = (
        [module.get("path", "") for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    )
    listed = [PurePosixPath(path) for path in paths if isinstance(path, str)]
    return [
        "" if str(path) == "." else str(path) for path in listed if not path.is_absolute() and ".." not in path.parts
    ]


def projection_weights(
    read_json: Callable[[str], Any], names: Collection[str], *, allow_pickle: bool
) -> list[list[str] | None]:
    """The weights of each projection: of a ``Dense`` in modules.json (None: it has none), and other libraries'."""
    modules = read_json("modules.json") if "modules.json" in names else None
    listed = modules if isinstance(modules, list) else []
    dense = [module for module in listed if isinstance(module, dict) and str(module.get("type")).endswith(".Dense")]
    folders = [f"{path}/" for path in module_paths(dense) if path]
    of_others = [list(files) for files in (*_HEADS, *([BGE_M3] if allow_pickle else [])) if {*files} <= {*names}]
    return [*(weight_files(read_json, names, folder, allow_pickle=allow_pickle) for folder in folders), *of_others]


def weight_files(
    read_json: Callable[[str], Any], names: Collection[str], folder: str, *, allow_pickle: bool
) -> list[str] | None:
    """The weights as `posexport.checkpoints.weights` chooses them: one file, or an index and its shards.

    ``names``: all files of the repository. None where it has no weights that may be read.
    """
    for stem, suffix in _WEIGHTS if allow_pickle else _WEIGHTS[:1]:
        single, index = f"{folder}{stem}{suffix}", f"{folder}{stem}{suffix}.index.json"
        if single in names:
            return [single]
        if index in names:
            content = read_json(index)
            shards = content.get("weight_map") if isinstance(content, dict) else None
            shards = shards.values() if isinstance(shards, dict) else ()
            return [index, *sorted({f"{folder}{name}" for name in shards if isinstance(name, str)})]
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
