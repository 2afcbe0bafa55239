"""``src_lang`` of mBART: the token of a text's language, after its end (mBART) or before its begin (mBART-50)."""

from posexport.checkpoints.tokenizer.settings import Settings
from posexport.checkpoints.tokenizer.switches.switch import Content, Switch, vocabulary
from posexport.errors import PosexportError

KEY = "src_lang"


def apply(content: Content, settings: Settings) -> list[str]:
    if settings.facts.language is None:
        return []
    ids = vocabulary(content)
    language = settings.values.get(KEY) or settings.facts.language
    stored = settings.values.get("eos_token", settings.facts.tokens["eos_token"])
    end = stored.get("content") if isinstance(stored, dict) else stored
    if language not in ids or end not in ids:
        raise PosexportError(
            f"{settings.shown(KEY)}, and tokenizer.json has no such token; give the code of a language"
        )
    before, behind = ([language], [end]) if settings.name == "MBart50Tokenizer" else ([], [end, language])

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


SWITCH = Switch((KEY,), apply)
