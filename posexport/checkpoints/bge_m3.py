"""Reads the two projections that FlagEmbedding saves with BGE-M3: to weights and to vectors of tokens."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.hub_cache import BGE_M3
from posexport.checkpoints.pooling import Pooling, Step
from posexport.checkpoints.text_rules import optional, text_rules
from posexport.checkpoints.weights import Pickle
from posexport.errors import PosexportError

#: tokens without a lexical weight, and what XLM-RoBERTa's tokenizer calls them where its files do not
_UNUSED = {"cls_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def files_of(files: Directory) -> dict[str, Path]:
    """The state dicts of both projections by name; empty unless both are there, as for the library."""
    present = {name: path for name in BGE_M3 if (path := files.find(name)) is not None}
    return present if len(present) == len(BGE_M3) else {}


def with_projections(pooling: Pooling | None, files: Directory, config: Config) -> Pooling:
    """``pooling`` with weights and vectors of tokens; without one the library's: the first token's state, normalised.

    Raises PosexportError for a file of vectors that is no linear projection.
    """
    name, path = list(files_of(files).items())[1]
    label = f"{files.path}/{name}"
    shape = Pickle(path, label).shapes.get("weight", [])
    if len(shape) != 2:
        raise PosexportError(
            f"{label} has no matrix called weight, as FlagEmbedding saves it; download it again, or leave "
            "--allow-pickle out to convert the dense embedding alone"
        )
    dense = pooling or _first_token(files, config)
    rules = msgspec.structs.replace(dense.rules, unused_tokens=_unused_tokens(files, dense.below))
    return replace(dense, token_width=shape[0], rules=rules, weight_files=BGE_M3)


def _first_token(files: Directory, config: Config) -> Pooling:
    """What FlagEmbedding computes without asking modules.json."""
    return Pooling(
        modes=["cls"],
        steps=[Step(dense=None)],
        width=config.size("hidden_size"),
        width_key="hidden_size",
        label=config.label,
        rules=text_rules(files, "", prompt_pooled=True),
    )


def _unused_tokens(files: Directory, below: str) -> list[str]:
    stated: dict[str, object] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        settings = optional(files, below + name)
        stated |= {} if settings is None else {key: settings.values.get(key) or stated.get(key) for key in _UNUSED}
    tokens = [_content(stated.get(key)) or default for key, default in _UNUSED.items()]
    return list(dict.fromkeys(tokens))


def _content(token: object) -> str | None:
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None
