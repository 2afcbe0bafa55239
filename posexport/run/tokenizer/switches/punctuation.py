"""``split_by_punct`` of DeBERTa-v2: punctuation marks are split off as words."""

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch

KEY = "split_by_punct"
_PUNCTUATION = {"type": "Punctuation", "behavior": "Isolated"}


def apply(content: Content, settings: Settings) -> list[str]:
    pre_tokenizer = content.get("pre_tokenizer")
    if settings.name != "DebertaV2Tokenizer" or not settings.says(KEY) or pre_tokenizer is None:
        return []
    sequence = pre_tokenizer.get("type") == "Sequence"
    steps = list(pre_tokenizer["pretokenizers"]) if sequence else [pre_tokenizer]
    without = [step for step in steps if step.get("type") != "Punctuation"]
    if settings.flag(KEY, False) == (without != steps):
        return []
    steps = [_PUNCTUATION, *without] if settings.flag(KEY, False) else without
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    return [f"{settings.shown(KEY)}, and tokenizer.json the opposite: it is followed, as in transformers 5"]


SWITCH = Switch((KEY,), apply)
