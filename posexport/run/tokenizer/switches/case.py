"""``do_lower_case``, ``strip_accents`` and ``tokenize_chinese_chars`` of the BERT family, ALBERT, XLNet and DeBERTa-v2.

The classes of the BERT family set the fields of a ``BertNormalizer`` to them, or to the defaults of the class.
"""

from typing import Any

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch

_FIELDS = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
_LOWER = {"type": "Lowercase"}
_ACCENTS = ({"type": "NFKD"}, {"type": "StripAccents"})
#: classes of transformers 5 that apply do_lower_case to a sequence of normalizers
_STEPS = ("AlbertTokenizer", "XLNetTokenizer", "DebertaV2Tokenizer")


def apply(content: Content, settings: Settings) -> list[str]:
    normalizer = content.get("normalizer")
    if settings.facts.normalizer:
        if normalizer is None:
            # transformers 4 does not load this file
            content["normalizer"] = normalizer = {"type": "BertNormalizer", "clean_text": True}
            normalizer |= {"handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
        if normalizer.get("type") == "BertNormalizer":
            for key in settings.facts.normalizer:
                field, default = _FIELDS[key]
                # strip_accents null: as lowercase
                is_null = default is None and not settings.says(key)
                normalizer[field] = None if is_null else settings.flag(key, bool(default))
            return []
    return _steps(content, settings)


def _steps(content: Content, settings: Settings) -> list[str]:
    steps = steps_of(content.get("normalizer"))
    remarks = []
    if settings.says("do_lower_case"):
        lowers, wants = any(lowers_text(step) for step in steps), settings.flag("do_lower_case", False)
        if lowers != wants and settings.name in _STEPS:
            place = len(steps) - sum(step.get("type") == "Precompiled" for step in steps[-1:])
            place = 0 if settings.name == "DebertaV2Tokenizer" else place
            steps = [*steps[:place], _LOWER, *steps[place:]] if wants else [s for s in steps if not lowers_text(s)]
            remarks.append(
                f"{settings.shown('do_lower_case')}, and tokenizer.json not: it is followed, by transformers 5 too"
            )
        elif lowers != wants:
            remarks.append(
                f"{settings.shown('do_lower_case')}, and the normalizer of tokenizer.json not: ids are those of "
                f"tokenizer.json, as in transformers 4.57"
            )
    # accents, of ALBERT alone
    if settings.name == "AlbertTokenizer" and settings.says("keep_accents"):
        strips, wants = any(s.get("type") == "StripAccents" for s in steps), not settings.flag("keep_accents", False)
        if strips != wants:
            steps = (
                [*_ACCENTS, *steps] if wants else [s for s in steps if s.get("type") not in ("NFKD", "StripAccents")]
            )
            remarks.append(
                f"{settings.shown('keep_accents')}, and tokenizer.json not: it is followed, by transformers 5 too"
            )
    set_steps(content, steps)
    return remarks


def lowers_text(step: dict[str, Any]) -> bool:
    return step.get("type") == "Lowercase" or (step.get("type") == "BertNormalizer" and bool(step.get("lowercase")))


def steps_of(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The normalizers of a sequence; a single normalizer as a list."""
    if normalizer is None:
        return []
    return list(normalizer["normalizers"]) if normalizer.get("type") == "Sequence" else [normalizer]


def set_steps(content: Content, steps: list[dict[str, Any]]) -> None:
    """Set the normalizer to ``steps``; unchanged if they are equal."""
    if steps != steps_of(content.get("normalizer")):
        content["normalizer"] = steps[0] if len(steps) == 1 else {"type": "Sequence", "normalizers": steps}


SWITCH = Switch((*_FIELDS, "keep_accents"), apply)
