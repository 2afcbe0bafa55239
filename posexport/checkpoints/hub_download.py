"""Downloads from the Hugging Face Hub the files that a conversion reads or a bundle takes over, and no others.

The library huggingface_hub does the transfer, to its cache: HF_ENDPOINT, HF_TOKEN and the rest mean what they do
there. Pickles are downloaded only where they are allowed and there are no safetensors; code never.
"""

import functools
import json
from pathlib import Path
from typing import Any

from posexport.checkpoints.bundle_files import BESIDE, TEMPLATES, TOP, configurations
from posexport.checkpoints.folder_kind import config_among, folder_kinds
from posexport.checkpoints.hub_cache import module_paths, projection_weights, weight_files, weights_folder
from posexport.errors import PosexportError

#: seconds until the Hub has listed a repository's files
_TIMEOUT = 30.0
#: kinds of weights that a repository may hold instead
_OTHER_WEIGHTS = (".bin", ".h5", ".msgpack", ".gguf", ".onnx", ".pt", ".pth", ".safetensors")


def download(name: str, revision: str, *, allow_pickle: bool, by_hand: str) -> tuple[Path, set[str]]:
    """Download ``revision`` of the repository ``name`` to the cache; the snapshot's directory, and what else there is.

    ``by_hand``: what else the user can do, for the sentences.

    Raises:
        PosexportError: no repository of that name, no access to it, no network, or nothing in it to convert.
    """
    import huggingface_hub

    try:
        info = huggingface_hub.HfApi().model_info(name, revision=revision, timeout=_TIMEOUT)
        names = {entry.rfilename for entry in info.siblings or []}

        def fetch(file: str) -> Path:
            return Path(huggingface_hub.hf_hub_download(name, file, revision=info.sha))

        for file in _texts(names, _json_of(fetch, names, "modules.json")):
            fetch(file)
        folder = weights_folder(lambda file: json.loads(fetch(file).read_bytes()), names)
        config = config_among(names, folder)
        if config not in names:
            alone = [library for library, kind in folder_kinds().items() if kind.alone in names]
            other = f"; for a folder of {alone[0]} {by_hand}" if alone else ""
            raise PosexportError(
                f"{name} on the Hugging Face Hub has no {config}: it is no checkpoint of transformers{other}"
            )
        weights = weight_files(
            lambda file: json.loads(fetch(file).read_bytes()), names, folder, allow_pickle=allow_pickle
        )
        if weights is None:
            raise PosexportError(_without_weights(name, names, folder))
        read = functools.partial(_json_of, fetch, names)
        for files in (weights, *projection_weights(read, names, allow_pickle=allow_pickle)):
            for file in files or []:
                fetch(file)
        # last, as this records which commit the revision is: from now on the cache is used for it
        path = Path(huggingface_hub.hf_hub_download(name, config, revision=revision))
    except PosexportError:
        raise
    except Exception as err:  # errors of the library, of its HTTP client and of the disk share no base class
        raise PosexportError(_reason(name, revision, err, by_hand)) from err
    directory = path.parents[config.count("/")]
    return directory, {file for file in names if not (directory / file).exists()}


def _json_of(fetch: Any, names: set[str], file: str) -> Any:
    return json.loads(fetch(file).read_bytes()) if file in names else None


def _texts(names: set[str], modules: Any) -> list[str]:
    """Configuration and tokenizer files: at the top, and in the folders that modules.json names."""
    folders = {"", *(f"{path}/" for path in module_paths(modules) if path)}
    templates = {name for name in names if name.startswith(f"{TEMPLATES}/") and name.endswith(".jinja")}
    beside = (*BESIDE, *configurations())
    return sorted(names & ({*TOP} | {f"{folder}{file}" for folder in folders for file in beside} | templates))


def _without_weights(name: str, names: set[str], folder: str) -> str:
    if any(f"{folder}pytorch_model.bin{end}" in names for end in ("", ".index.json")):
        return f"{name} has its weights as .bin only, a pickle; if you trust it use --allow-pickle"
    other_weights = sorted(file for file in names if file.endswith(_OTHER_WEIGHTS))
    holds = f"; it holds {', '.join(other_weights[:3])}" if other_weights else ""
    return f"{name} on the Hugging Face Hub has no {folder}model.safetensors, which conversion needs{holds}"


def _reason(name: str, revision: str, err: Exception, by_hand: str) -> str:
    """One sentence for an error of the library. Classes are compared by name, since versions move them."""
    kinds = {kind.__name__ for kind in type(err).__mro__}
    if "GatedRepoError" in kinds:
        return f"{name} is gated: accept its conditions on its page, log in with hf auth login, and convert again"
    if "RepositoryNotFoundError" in kinds:
        return (
            f"no such directory: {name}, and the Hugging Face Hub has no such model (a private one needs HF_TOKEN or "
            "hf auth login): check the name"
        )
    if "RevisionNotFoundError" in kinds:
        return f"{name} has no revision {revision} on the Hugging Face Hub: give a branch, a tag or a whole commit hash"
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        return f"{name}: the Hugging Face Hub lists a file that it does not have ({_first_line(err)}): try again"
    return f"no such directory: {name}, and the Hugging Face Hub did not give it ({_first_line(err)}): {by_hand}"


def _first_line(err: Exception) -> str:
    text = str(err).strip().splitlines()
    return (text[0] if text else type(err).__name__).strip().rstrip(".:")[:300]
