"""A switch: keys of configuration files, and the change that they make to a tokenizer.json."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posexport.run.tokenizer.settings import Settings

#: the content of a tokenizer.json, changed in place
Content = dict[str, Any]


@dataclass(frozen=True)
class Switch:
    """``apply`` changes the content of a tokenizer.json and returns remarks for the user."""

    keys: tuple[str, ...]
    apply: Callable[[Content, Settings], list[str]]


def vocabulary(content: Content) -> dict[str, int]:
    """Ids by token, added tokens included."""
    stored = content["model"].get("vocab", {})
    ids = {token: number for number, (token, *_) in enumerate(stored)} if isinstance(stored, list) else dict(stored)
    return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or []}
