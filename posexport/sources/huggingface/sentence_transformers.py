"""Reads the modules.json of sentence-transformers: a transformer, a pooling, a normalisation, and nothing else."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from posexport.errors import PosexportError
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.directory import Directory

MODULES = "modules.json"
_PACKAGE = "sentence_transformers."
_POOLINGS: dict[str, Literal["mean", "cls"]] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class Pooling:
    """How a sentence's vector is made. ``below`` is the folder of config.json and weights, empty or ending in ``/``."""

    mode: Literal["mean", "cls"]
    normalise: bool
    width: int
    label: str
    below: str = ""
    files: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def check_width(self, hidden: int) -> None:
        """PosexportError unless it pools vectors of size ``hidden``."""
        if self.width != hidden:
            raise PosexportError(
                f"{self.label} says word_embedding_dimension = {self.width}; config.json says hidden_size = {hidden}"
            )


def read(directory: Directory) -> Pooling:
    """What modules.json describes; PosexportError for any other module or pooling."""
    label = f"{directory.path}/{MODULES}"
    modules = directory.json(MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise PosexportError(f"{label} is not a list of modules, as sentence-transformers writes it")
    names = [_name(label, module) for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise PosexportError(
            f"{label} lists {', '.join(names) or 'nothing'}; only Transformer, Pooling and then Normalize or nothing "
            f"is supported, use --task features for the transformer alone"
        )
    below = _folder(label, modules[0])
    config = Config(directory, f"{_folder(label, modules[1])}config.json")
    chosen = sorted(key for key in config.values if key.startswith("pooling_mode") and config.flag(key, False))
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise PosexportError(
            f"{config.label} chooses {', '.join(chosen) or 'no pooling'}; supported is exactly one of "
            f"{', '.join(_POOLINGS)}"
        )
    files = [MODULES, f"{_folder(label, modules[1])}config.json"]
    width = config.size("word_embedding_dimension")
    remarks = _remarks(directory, below)
    return Pooling(_POOLINGS[chosen[0]], len(names) == 3, width, config.label, below, files, remarks)


def _name(label: str, module: dict[str, Any]) -> str:
    kind = module.get("type")
    if not isinstance(kind, str) or not kind.startswith(_PACKAGE):
        raise PosexportError(
            f"{label} lists a module of type {kind!r:.80}; only those of sentence-transformers itself are read, "
            f"code from a checkpoint is never executed"
        )
    return kind.rpartition(".")[2]


def _folder(label: str, module: dict[str, Any]) -> str:
    path = module.get("path", "")
    if not isinstance(path, str):
        raise PosexportError(f"{label} says path = {path!r:.60}; it must be the name of a folder")
    return "" if path in ("", ".") else f"{PurePosixPath(path)}/"


def _remarks(directory: Directory, below: str) -> list[str]:
    """What sentence-transformers does to texts before the model, which a model cannot hold."""
    found = []
    for name in dict.fromkeys((f"{below}sentence_bert_config.json", "config_sentence_transformers.json")):
        if directory.find(name) is None:
            continue
        config = Config(directory, name)
        if config.values.get("max_seq_length") is not None:
            longest = config.size("max_seq_length")
            found.append(
                f"sentence-transformers cuts texts at {longest} tokens; the model itself takes what its table holds"
            )
        if config.values.get("do_lower_case"):
            found.append("sentence-transformers lowers the case of texts first; do so before the tokenizer")
        if config.values.get("default_prompt_name"):
            found.append("sentence-transformers puts a prompt before texts by default; the bundle does not")
    return found
