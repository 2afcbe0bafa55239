"""``clean_up_tokenization_spaces``: transformers takes the blank before punctuation out of decoded texts.

It is no step of tokenizer.json's decoder there, and none here: a text that grows by tokens would change before them.
"""

from posexport.checkpoints.tokenizer.settings import Settings
from posexport.checkpoints.tokenizer.switches.switch import Content, Switch

KEY = "clean_up_tokenization_spaces"


def apply(content: Content, settings: Settings) -> list[str]:
    kind = content["model"].get("type")
    if not settings.flag(KEY, False) or not settings.generates or kind == "WordPiece":
        return []  # the decoder of WordPiece does it by itself
    if kind == "BPE":
        return [f"{settings.shown(KEY)}, which transformers 5 ignores for byte-pair encoding, and 4.57 does not"]
    return [f"{settings.shown(KEY)}: posexport.pipeline follows it, Session.generate gives texts as they are decoded"]


SWITCH = Switch((KEY,), apply)
