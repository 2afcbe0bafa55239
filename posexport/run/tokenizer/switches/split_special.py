"""``split_special_tokens``: tokenize special tokens in a text as plain text. tokenizer.json has no field for it."""

from posexport.run.tokenizer.settings import CONFIG, Settings
from posexport.run.tokenizer.switches.switch import Content, Switch

KEY = "split_special_tokens"


def is_followed(settings: Settings) -> bool:
    """Whether `posexport.run.texts`, which reads tokenizer_config.json alone, tokenizes special tokens as text."""
    return settings.flag(KEY, False) and settings.origins[KEY] == CONFIG


def apply(_: Content, settings: Settings) -> list[str]:
    if not settings.flag(KEY, False):
        return []
    if not is_followed(settings):
        return [
            f"{settings.shown(KEY)}, for which tokenizer.json has no field: the bundle does not follow it; set it in "
            f"{CONFIG} and convert again"
        ]
    return [
        f"{settings.shown(KEY)}, for which tokenizer.json has no field: posexport follows it, and another client must "
        "set it itself (encode_special_tokens of the tokenizers library)"
    ]


SWITCH = Switch((KEY,), apply)
