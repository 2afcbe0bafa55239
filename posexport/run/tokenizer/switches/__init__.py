"""Changes that transformers' tokenizer classes make to a tokenizer.json after loading, in their order."""

from posexport.run.tokenizer.switches import (
    added_tokens,
    begin_end,
    case,
    clean_up,
    jieba,
    languages,
    lower_first,
    mistral_regex,
    prefix_space,
    punctuation,
    sides,
    split_special,
)
from posexport.run.tokenizer.switches.switch import Switch

SWITCHES: tuple[Switch, ...] = (
    added_tokens.SWITCH,
    case.SWITCH,
    prefix_space.SWITCH,
    punctuation.SWITCH,
    mistral_regex.SWITCH,
    begin_end.SWITCH,
    languages.SWITCH,
    jieba.SWITCH,
    clean_up.SWITCH,
    split_special.SWITCH,
    sides.SWITCH,
    lower_first.SWITCH,
)
