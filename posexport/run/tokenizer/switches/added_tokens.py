"""Special and added tokens of configuration files that tokenizer.json lacks or has with different flags."""

from typing import Any

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.special_tokens import LISTED, NAMED
from posexport.run.tokenizer.switches.switch import Content, Switch

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def apply(content: Content, settings: Settings) -> list[str]:
    if missing := missing_tokens(content, settings):
        content["added_tokens"] = _with(content, missing)
    return []


def missing_tokens(content: Content, settings: Settings) -> list[dict[str, Any]]:
    """The tokens that transformers adds after loading tokenizer.json, in its order."""
    listed_now = content.get("added_tokens") or []
    has = {token["content"]: {name: token.get(name, False) for name in _FLAGS} for token in listed_now}
    special = settings.special_tokens()
    listed = [token for _, token in sorted(settings.added.items())]
    missing = [
        {**token, "special": token["special"] or token["content"] in special}
        for token in listed
        if has.get(token["content"]) != {name: token[name] for name in _FLAGS}
    ]
    known = has.keys() | {token["content"] for token in missing}
    return missing + [token for name, token in special.items() if name not in known]


def _with(content: Content, tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The added tokens with ``tokens``; ids as in the tokenizers library: from the vocabulary, else the next."""
    stored = content["model"].get("vocab", {})
    ids = {token: number for number, (token, *_) in enumerate(stored)} if isinstance(stored, list) else stored
    added = {token["content"]: token for token in content.get("added_tokens") or []}
    for token in tokens:
        name = token["content"]
        number = added[name]["id"] if name in added else ids.get(name)
        if number is None:
            number = max(len(ids), max((item["id"] for item in added.values()), default=-1) + 1)
        added[name] = {"id": number, **token}
    return sorted(added.values(), key=lambda token: token["id"])


SWITCH = Switch((*NAMED, *LISTED, "added_tokens_decoder", "extra_ids"), apply)
