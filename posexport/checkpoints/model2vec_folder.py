"""What the folder of a model2vec model says: its tokenizer, where texts end, and its labels."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexport.base.spec import TextRules
from posexport.base.system.scratch import scratch_folder
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.folder_kind import FolderKind, Opened
from posexport.checkpoints.text_rules import optional
from posexport.errors import PosexportError

TYPE = "model2vec"
HEAD, LEGACY = "head.safetensors", "pipeline.skops"
TOKENIZER, CONFIG = "tokenizer.json", "config.json"
#: tokens of a text where config.json does not say how many
_MAX_LENGTH = 512


def is_model2vec(files: Directory) -> bool:
    """Whether model2vec saved the folder."""
    config = optional(files, CONFIG)
    return config is not None and config.values.get("model_type") == TYPE


def weight_files(files: Directory, config: Config) -> list[str]:
    """The file of the head's weights, if there is one; none for folders of others."""
    return [HEAD] if config.values.get("model_type") == TYPE and files.find(HEAD) is not None else []


def head_of(config: Config) -> Mapping[str, Any]:
    """``head_config``: the number of layers, the activation and the labels; empty without a head."""
    head = config.values.get("head_config") or {}
    if not isinstance(head, Mapping):
        raise PosexportError(f"{config.label} says head_config = {head!r:.60}; it must be an object")
    return head


def text_rules(files: Directory, config: Config) -> TextRules:
    """Texts end after ``max_length`` times the vocabulary's median word in characters, then after so many tokens."""
    length = config.values.get("max_length", _MAX_LENGTH)
    if length is None:
        return TextRules()
    if not isinstance(length, int) or length < 1:
        raise PosexportError(f"{config.label} says max_length = {length!r:.60}; it must be a number of tokens, or null")
    words = [len(word) for word in _tokenizer(files).get_vocab()]
    return TextRules(max_length=length, max_characters=length * int(statistics.median(words)))


def unknown_of(files: Directory) -> int | None:
    """The id of unknown tokens, which have no vector; None if the tokenizer has none."""
    tokenizer = _tokenizer(files)
    model = json.loads(tokenizer.to_str())["model"]
    if "unk_id" in model:
        number: int | None = model["unk_id"]
        return number
    token = model.get("unk_token")
    return None if token is None else tokenizer.token_to_id(token)


def _bundle_files(opened: Opened) -> dict[str, Path]:
    """The files of a bundle: the tokenizer without special tokens, and config.json with the labels' names."""
    folder, config, names = scratch_folder(), opened.config, opened.named
    content = json.loads(_tokenizer(opened.files).to_str()) | {"post_processor": None, "truncation": None}
    _write(folder / TOKENIZER, content)
    kept = {name: path for name, path in names.items() if not name.startswith(("tokenizer", "special_tokens"))}
    head = head_of(config)
    stated: dict[str, Any] = {}
    if classes := head.get("classes"):
        stated["id2label"] = {str(number): str(name) for number, name in enumerate(classes)}
    if head.get("activation") == "sigmoid":
        stated["problem_type"] = "multi_label_classification"
    (folder / CONFIG).write_text(
        json.dumps({**config.values, **stated}, ensure_ascii=False), encoding="utf-8", newline="\n"
    )
    return kept | {TOKENIZER: folder / TOKENIZER, CONFIG: folder / CONFIG}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8", newline="\n")


def _tokenizer(files: Directory) -> Any:
    from posexport.run.texts import tokenizer_of

    path = files.find(TOKENIZER)
    if path is None:
        raise PosexportError(f"{files.path} has no {TOKENIZER}, by which model2vec reads texts; download it again")
    return tokenizer_of(path)


KIND = FolderKind(bundle_files=_bundle_files)
