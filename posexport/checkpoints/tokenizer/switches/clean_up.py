"""``clean_up_tokenization_spaces``: decoded texts lose the blank before punctuation, by steps of the decoder."""

from typing import Any

from posexport.checkpoints.tokenizer.settings import Settings
from posexport.checkpoints.tokenizer.switches.switch import Content, Switch

KEY = "clean_up_tokenization_spaces"
_REPLACED = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


def apply(content: Content, settings: Settings) -> list[str]:
    if not settings.flag(KEY, False):
        return []
    if content["model"].get("type") == "BPE":
        return [
            f"{settings.shown(KEY)}, which transformers 5 does not follow for byte-pair encoding, since it damages "
            "texts; transformers 4.57 removes the blank before punctuation when it decodes"
        ]
    decoder = content.get("decoder")
    if decoder is not None:
        inner = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
        content["decoder"] = {"type": "Sequence", "decoders": [*inner, {"type": "Fuse"}, *_replacements()]}
    return []


def _replacements() -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in _REPLACED]


SWITCH = Switch((KEY,), apply)
