"""The special tokens that the files of a folder name, with the defaults of the tokenizer's class."""

from collections.abc import Mapping
from typing import Any

from posexport.run.tokenizer.classes import TokenizerClass

#: keys that name one special token, in the order in which transformers adds missing ones
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
#: keys with lists of further special tokens, in transformers 4 and 5
LISTED = ("additional_special_tokens", "extra_special_tokens")


def special_tokens(name: str, facts: TokenizerClass, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Special tokens by content, in transformers' order, with their flags from a file or from the class.

    Args:
        name: transformers' tokenizer class.
        facts: its defaults.
        values: the settings of the files, by key.
    """
    result: dict[str, dict[str, Any]] = {}
    for key in NAMED:
        default = facts.tokens.get(key)
        stored = values.get(key) if key in values else default
        strips = key == "mask_token" and facts.mask_strips
        if token := special(stored, strips=strips):
            result.setdefault(token["content"], token)
    listed = [item for key in LISTED for item in _items(values.get(key))]
    for stored in [*(listed or facts.more), *facts.always, *_sentinels(name, values, listed)]:
        if token := special(stored):
            result.setdefault(token["content"], token)
    return result


def _sentinels(name: str, values: Mapping[str, Any], listed: list[Any]) -> list[str]:
    """The sentinels ``<extra_id_0>``, ... that T5's class adds unless a file lists them."""
    count = values.get("extra_ids", 100)
    if name != "T5Tokenizer" or not isinstance(count, int) or any("<extra_id_" in str(token) for token in listed):
        return []
    return [f"<extra_id_{number}>" for number in range(count)]


def special(stored: Any, *, strips: bool = False) -> dict[str, Any] | None:
    """A special token from its stored form, a string or an object with flags; None for other values."""
    if isinstance(stored, str) and stored:
        flags = {"single_word": False, "lstrip": strips, "rstrip": False, "normalized": False, "special": True}
        return {"content": stored, **flags}
    if isinstance(stored, dict) and isinstance(stored.get("content"), str) and stored["content"]:
        flags = {name: bool(stored.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        return {"content": stored["content"], **flags, "special": True}
    return None


def _items(stored: Any) -> list[Any]:
    return list(stored.values()) if isinstance(stored, dict) else list(stored) if isinstance(stored, list) else []
