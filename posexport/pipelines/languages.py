"""Language codes around the texts of multilingual translators, as transformers' tokenizers add for ``src_lang``."""

from collections.abc import Callable

from posexport.errors import PosexportError
from posexport.pipelines.files import ModelFiles

TokenId = Callable[[str], int | None]
#: by the beginning of the tokenizer's class: whether the code comes before the text, and how codes are written
_RULES: tuple[tuple[str, bool, str], ...] = (
    ("MBart50", True, "{}"),
    ("MBart", False, "{}"),
    ("M2M100", True, "__{}__"),
    ("Nllb", True, "{}"),
)


def source_tokens(
    files: ModelFiles, token_id: TokenId, source: str | None, target: str | None
) -> tuple[list[int], list[int]] | None:
    """The ids before and after a text in the language ``source``; None: the tokenizer has no languages.

    Raises PosexportError for a multilingual tokenizer without both languages, or with unknown ones.
    """
    rule = _rule(files)
    if rule is None:
        return None
    if source is None or target is None:
        raise PosexportError("this model translates many languages; give src_lang and tgt_lang, such as 'en_XX'")
    before, spelling = rule
    code = _id(token_id, spelling.format(source), "src_lang", source)
    end = _id(token_id, files.special_token("eos_token") or "</s>", "eos_token", "</s>")
    return ([code], [end]) if before else ([], [end, code])


def target_token(files: ModelFiles, token_id: TokenId, target: str) -> int:
    """The first token of a translation into ``target``."""
    rule = _rule(files)
    assert rule is not None
    return _id(token_id, rule[1].format(target), "tgt_lang", target)


def _rule(files: ModelFiles) -> tuple[bool, str] | None:
    name = str(files.tokenizer_config.get("tokenizer_class", ""))
    for beginning, before, spelling in _RULES:
        if name.startswith(beginning):
            legacy = beginning == "Nllb" and bool(files.tokenizer_config.get("legacy_behaviour"))
            return before and not legacy, spelling
    return None


def _id(token_id: TokenId, token: str, option: str, value: str) -> int:
    number = token_id(token)
    if number is None:
        raise PosexportError(f"the tokenizer has no token {token} for {option}={value!r}; give one of its codes")
    return number
