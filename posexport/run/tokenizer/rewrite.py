"""Applies the switches to a tokenizer.json, in order."""

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posexport.errors import PosexportError
from posexport.run.tokenizer import keys
from posexport.run.tokenizer.settings import TOKENIZER, Settings
from posexport.run.tokenizer.switches import SWITCHES
from posexport.run.tokenizer.switches.switch import Content, vocabulary

#: the library writes a vocabulary by counting to its largest id; no model has a million rows of embeddings
_LARGEST_ID = 1 << 24


@dataclass
class Rewritten:
    """``data``: the new tokenizer.json, None if unchanged; ``tokens``: ids by token."""

    data: bytes | None
    remarks: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)


def rewritten(stored: Content, settings: Settings) -> Rewritten:
    """``stored``, the content of a tokenizer.json, as transformers' tokenizer is once all files of the folder are read.

    Raises:
        PosexportError: an invalid value of a key.
    """
    content = copy.deepcopy({**stored, "model": None}) | {"model": stored["model"]}
    remarks = [sentence for switch in SWITCHES for sentence in switch.apply(content, settings)]
    tokens = vocabulary(content)
    remarks += keys.remarks(settings, tokens)
    data = None if content == stored else encoded(content)
    return Rewritten(data, remarks, tokens)


def encoded(content: Content) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def content_of(path: Path) -> dict[str, Any]:
    """The content of a tokenizer.json; PosexportError for a file that the tokenizers library does not read.

    Files from before tokenizers 0.12 lack a direction of truncation and padding and are accepted: both are rewritten.
    """
    data = path.read_bytes()
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as err:
        raise PosexportError(f"{TOKENIZER} is not valid JSON ({err}): download it again") from err
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise PosexportError(f"{TOKENIZER} holds no tokenizer: it must be a JSON object with a model")
    if not all(isinstance(content.get(key), dict | None) for key in ("truncation", "padding")):
        raise PosexportError(f"{TOKENIZER} holds no tokenizer: truncation and padding must be JSON objects or null")
    without = {**content, "truncation": None, "padding": None}
    if _load_error(data) is not None and (reason := _load_error(encoded(without))) is not None:
        raise PosexportError(
            f"the tokenizers library does not read {TOKENIZER} ({reason}): download it again, or upgrade tokenizers"
        )
    if not all(_is_component(content.get(key)) for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")):
        raise PosexportError(
            f"{TOKENIZER} has a component that is no JSON object, such as a step of a Sequence that is a list; "
            "download it again"
        )
    vocab = content["model"].get("vocab")
    if isinstance(vocab, dict) and max(vocab.values(), default=0) > _LARGEST_ID:
        raise PosexportError(
            f"{TOKENIZER} has a token with the id {max(vocab.values())}, and ids up to {_LARGEST_ID} are read; "
            "download it again"
        )
    return content


def _is_component(stored: Any) -> bool:
    """Whether it and the steps of a Sequence are objects; the library takes lists of their fields as well."""
    if not isinstance(stored, dict):
        return stored is None
    names = ("normalizers", "pretokenizers", "processors", "decoders")
    return all(step is not None and _is_component(step) for name in names for step in stored.get(name) or ())


def _load_error(data: bytes) -> str | None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_buffer(data)
    except Exception as err:  # noqa: BLE001 - the library raises Exception itself
        return str(err)
    return None
