"""``fix_mistral_regex``: Mistral's pre-tokenizer pattern, instead of the wrong one that older files were saved with.

transformers applies it to vocabularies over 100,000 tokens, with a config.json of a Mistral model, or without model
type, that transformers before 5.0 wrote.
"""

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch

KEY = "fix_mistral_regex"
_MISTRAL = ("mistral", "mistral3", "voxtral", "ministral", "pixtral", None)
_MANY = 100_000
_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def apply(content: Content, settings: Settings) -> list[str]:
    pre_tokenizer, model = content.get("pre_tokenizer"), settings.model
    version = str(model.get("transformers_version") or "0").partition(".")[0]
    if not settings.flag(KEY, False) or pre_tokenizer is None or len(content["model"].get("vocab", ())) <= _MANY:
        return []
    if not model or not version.isdecimal() or int(version) >= 5 or model.get("model_type") not in _MISTRAL:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        pre_tokenizer["pretokenizers"][0] = _SPLIT
    else:
        last = _BYTES if pre_tokenizer.get("type") == "Metaspace" else pre_tokenizer
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [_SPLIT, last]}
    return []


SWITCH = Switch((KEY,), apply)
