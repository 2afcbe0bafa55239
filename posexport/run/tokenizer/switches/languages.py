"""``src_lang`` of mBART and NLLB: a language token after the text (mBART) or before it (mBART-50, NLLB)."""

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch, vocabulary

KEY = "src_lang"


def apply(content: Content, settings: Settings) -> list[str]:
    if settings.facts.language is None:
        return []
    ids = vocabulary(content)
    language, end = settings.token(KEY) or settings.facts.language, settings.token("eos_token")
    if language not in ids or end not in ids:
        return [f"tokenizer.json has no token for the language {language!r} or no {end!r}: texts get neither"]
    is_first = settings.name == "MBart50Tokenizer"
    if settings.name == "NllbTokenizer":
        is_first = not settings.flag("legacy_behaviour", False)
    before, behind = ([language], [end]) if is_first else ([], [end, language])

    def around(*texts: str) -> list[Content]:
        parts = [{"Sequence": {"id": text, "type_id": 0}} for text in texts]
        first, last = ([{"SpecialToken": {"id": token, "type_id": 0}} for token in side] for side in (before, behind))
        return [*first, *parts, *last]

    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A", "B"),
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (*before, *behind)
        },
    }
    return []


SWITCH = Switch((KEY, "legacy_behaviour"), apply)
