"""``split_special_tokens``: tokenize special tokens in a text as plain text. tokenizer.json has no field for it."""

from posexport.checkpoints.tokenizer.settings import Settings
from posexport.checkpoints.tokenizer.switches.switch import Content, Switch

KEY = "split_special_tokens"


def apply(_: Content, settings: Settings) -> list[str]:
    if not settings.flag(KEY, False):
        return []
    return [
        f"{settings.shown(KEY)}, for which tokenizer.json has no field: posexport follows it, and another client must "
        "set it itself (encode_special_tokens of the tokenizers library)"
    ]


SWITCH = Switch((KEY,), apply)
