"""The rewriting of a tokenizer.json by the switches, one after the other."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posexport.checkpoints.tokenizer import keys, sentence_transformers
from posexport.checkpoints.tokenizer.settings import TOKENIZER, Settings
from posexport.checkpoints.tokenizer.switches import SWITCHES
from posexport.checkpoints.tokenizer.switches.switch import Content, vocabulary
from posexport.errors import PosexportError


@dataclass
class Rewritten:
    """``data``: the content of a tokenizer.json, None where it may stay as it is; ``tokens``: ids by token."""

    data: bytes | None
    remarks: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)


def rewritten(stored: Content, files: Mapping[str, Path], settings: Settings) -> Rewritten:
    """``stored``, the content of a tokenizer.json, as transformers' tokenizer is once all of ``files`` are read.

    Raises:
        PosexportError: a value that a key cannot have.
    """
    content = copy.deepcopy({**stored, "model": None}) | {"model": stored["model"]}
    remarks = [sentence for switch in SWITCHES for sentence in switch.apply(content, settings)]
    remarks += sentence_transformers.apply(content, files)
    tokens = vocabulary(content)
    remarks += keys.remarks(settings, tokens)
    data = None if content == stored else encoded(content)
    return Rewritten(data, remarks, tokens)


def encoded(content: Content) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def content_of(path: Path) -> dict[str, Any]:
    """A tokenizer.json; PosexportError for any other content."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as err:
        raise PosexportError(f"{TOKENIZER} is not valid JSON ({err}): download it again") from err
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise PosexportError(f"{TOKENIZER} holds no tokenizer: it must be a JSON object with a model")
    return content
