"""``clean_up_tokenization_spaces``: transformers removes spaces before punctuation from decoded texts.

The decoder of tokenizer.json has no step for it, in transformers and here: in streaming, it would change earlier text.
"""

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch

KEY = "clean_up_tokenization_spaces"


def apply(content: Content, settings: Settings) -> list[str]:
    kind = content["model"].get("type")
    if not settings.flag(KEY, False) or not settings.generates or kind == "WordPiece":
        return []  # the decoder of WordPiece does it by itself
    if kind == "BPE":
        return [f"{settings.shown(KEY)}, which transformers 5 ignores for byte-pair encoding, and 4.57 does not"]
    return [f"{settings.shown(KEY)}: posexport.pipeline follows it, Session.generate gives texts as they are decoded"]


SWITCH = Switch((KEY,), apply)
