"""The tokenizer settings of a folder, merged in the order of transformers' ``from_pretrained``."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posexport.errors import PosexportError
from posexport.run.tokenizer import classes
from posexport.run.tokenizer.special_tokens import special_tokens

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
ADDED = "added_tokens.json"
#: files of sentence-transformers, and keys with arguments of ``from_pretrained``: the first that exists is used
SENTENCE = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
HANDED_ON = ("processor_kwargs", "tokenizer_args", "tokenizer_kwargs")
#: arguments of ``from_pretrained`` about the location of files
_WHERE = {"trust_remote_code", "revision", "token", "cache_dir", "local_files_only", "subfolder", "use_fast"}
#: configurations of released checkpoints are far smaller
_BYTES = 10_000_000


@dataclass
class Settings:
    """Merged keys and values, with the file that each key is from.

    Attributes:
        name: transformers' tokenizer class, without ``Fast``; empty if no file names it.
        values: values by key, later files over earlier ones.
        origins: name of the file by key.
        model: config.json.
        added: tokens by id of ``added_tokens_decoder`` or ``added_tokens.json``.
        handed_on: arguments that sentence-transformers passes to ``from_pretrained``; included in ``values``.
        lowers_first: whether sentence-transformers lowercases texts before the normalizer (its ``do_lower_case``).
        cut, longest, generates, takes_types, takes_pairs, left_padding_counts: as in
            `posexport.run.tokenizer.make.Model`.
        corrected: values of tokenizer_config.json that the bundle has in place of those of the files.
    """

    name: str
    values: dict[str, Any]
    origins: dict[str, str]
    model: dict[str, Any] = field(default_factory=dict)
    added: dict[int, dict[str, Any]] = field(default_factory=dict)
    handed_on: dict[str, Any] = field(default_factory=dict)
    lowers_first: bool = False
    cut: int | None = None
    longest: int | None = None
    generates: bool = False
    takes_types: bool = False
    takes_pairs: bool = True
    left_padding_counts: Callable[[], bool] = lambda: False
    corrected: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> classes.TokenizerClass:
        return classes.CLASSES.get(self.name, classes.GENERIC)

    def says(self, key: str) -> bool:
        """Whether a file has a value other than ``null``."""
        return self.values.get(key) is not None

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; ``default`` if missing or ``null``. PosexportError for other types."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise PosexportError(f"{self.origins[key]} says {key} = {value!r:.60}; it must be true or false")
        return value

    def side(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        if value not in ("left", "right"):
            raise PosexportError(f"{self.origins[key]} says {key} = {value!r:.60}; it must be left or right")
        return str(value)

    def token(self, key: str) -> str | None:
        """Text of the special token under ``key``, or of the class's default; None if there is neither."""
        stored = self.values[key] if key in self.values else self.facts.tokens.get(key)
        text = stored.get("content") if isinstance(stored, dict) else stored
        return text if isinstance(text, str) and text else None

    @property
    def types_given(self) -> bool:
        """`gives_types` of tokenizer_config.json."""
        names, kind = (self.values.get(key) for key in ("model_input_names", "tokenizer_class"))
        return gives_types(kind, names if isinstance(names, list) else None)

    def special_tokens(self) -> dict[str, dict[str, Any]]:
        """Special tokens by content, in transformers' order, with their flags."""
        return special_tokens(self.name, self.facts, self.values)

    def shown(self, key: str) -> str:
        """File, key and value, as the start of a remark."""
        return f"{self.origins[key]} says {key} = {json.dumps(self.values[key])}"


def gives_types(tokenizer_class: str | None, model_input_names: Sequence[str] | None) -> bool:
    """Whether a tokenizer returns ``token_type_ids``, 1 for the second text of a pair.

    ``TokenizersBackend``, the generic class of transformers 5, does so only where ``model_input_names`` lists them.
    ``PreTrainedTokenizerFast`` does as in transformers 4.57, which wrote such folders; version 5 returns none for it.
    """
    if model_input_names is not None:
        return "token_type_ids" in model_input_names
    return tokenizer_class != "TokenizersBackend"


def read(files: Mapping[str, Path]) -> Settings:
    """The settings of ``files``, by name. PosexportError for a file that is not a JSON object."""
    config = _object(files, CONFIG)
    values, origins = dict(config), dict.fromkeys(config, CONFIG)
    model = _object(files, "config.json")
    settings = Settings(_class_name(config, model), values, origins, model)
    listed = values.get("added_tokens_decoder")
    if isinstance(listed, dict):
        settings.added = dict(_listed_token(key, token) for key, token in listed.items())
    else:
        _read_older(files, settings)
    _read_sentence_transformers(files, settings)
    return settings


def _read_older(files: Mapping[str, Path], settings: Settings) -> None:
    """special_tokens_map.json and added_tokens.json, which count only without ``added_tokens_decoder``."""
    for key, value in _object(files, SPECIAL).items():
        settings.values[key], settings.origins[key] = value, SPECIAL
    special = set(settings.special_tokens())
    for content, number in _object(files, ADDED).items():
        if isinstance(number, int):
            is_special = content in special
            settings.added[number] = {
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": not is_special,
                "special": is_special,
            }


def _read_sentence_transformers(files: Mapping[str, Path], settings: Settings) -> None:
    """Arguments of ``from_pretrained``, which override all other files, and ``do_lower_case``."""
    name = next((name for name in SENTENCE if name in files), None)
    if name is None:
        return
    config = _object(files, name)
    arguments: dict[str, Any] = next((config[key] for key in HANDED_ON if isinstance(config.get(key), dict)), {})
    settings.handed_on = {key: value for key, value in arguments.items() if key not in _WHERE}
    settings.values |= settings.handed_on
    settings.origins |= dict.fromkeys(settings.handed_on, name)
    settings.lowers_first = config.get("do_lower_case") is True


def _class_name(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    named = config.get("tokenizer_class") or model.get("tokenizer_class")
    if isinstance(named, str):
        return named.removesuffix("Fast") if named != "PreTrainedTokenizerFast" else named
    return classes.BY_MODEL_TYPE.get(str(model.get("model_type")), "")


def _listed_token(key: str, stored: Any) -> tuple[int, dict[str, Any]]:
    """Id and token of ``added_tokens_decoder``, all flags filled in with the defaults of ``AddedToken``."""
    if not key.isdecimal():
        raise PosexportError(f"{CONFIG} lists a token under {key!r:.60} in added_tokens_decoder; the key must be an id")
    if not isinstance(stored, dict) or not isinstance(stored.get("content"), str):
        raise PosexportError(f"{CONFIG} lists {stored!r:.60} under added_tokens_decoder; each must have a content")
    special = bool(stored.get("special", False))
    flags = {name: bool(stored.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    normalized = bool(stored.get("normalized", not special))
    return int(key), {"content": stored["content"], **flags, "normalized": normalized, "special": special}


def _object(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    path = files[name]
    if path.stat().st_size > _BYTES:
        raise PosexportError(f"{name} has {path.stat().st_size} bytes, more than the {_BYTES} a configuration may have")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as err:
        raise PosexportError(f"{name} is not valid JSON ({err}): download it again") from err
    if not isinstance(content, dict):
        raise PosexportError(f"{name} holds a {type(content).__name__}; it must be a JSON object")
    return content
