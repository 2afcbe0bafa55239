"""``Wav2Vec2CTCTokenizer``: frame by frame ids as text and offsets, by vocab.json and tokenizer_config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from posexport.errors import PosexportError

#: transformers' classes that decode so; None: the file names none
CLASSES = (None, "Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer")
DELIMITER = "|"
#: what ``clean_up_tokenization_spaces`` replaces, in this order
CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


@dataclass(frozen=True)
class Span:
    """A character or a word, and the frames that it takes: from ``start`` to before ``end``."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class CtcTokenizer:
    """Decoding rules of connectionist temporal classification.

    Attributes:
        tokens: by id.
        pad_token: the blank.
        unk_token: of ids that are no token's.
        word_delimiter_token: between words.
        replace_word_delimiter_char: what it becomes.
        do_lower_case: texts are lowered.
        clean_up_tokenization_spaces: no blank before punctuation.
    """

    tokens: Mapping[int, str]
    pad_token: str = "<pad>"
    unk_token: str = "<unk>"
    word_delimiter_token: str = DELIMITER
    replace_word_delimiter_char: str = " "
    do_lower_case: bool = False
    clean_up_tokenization_spaces: bool = False

    def characters(self, ids: Sequence[int]) -> list[Span]:
        """The tokens of frames [n] without repetitions and blanks."""
        spans, frame = [], 0
        for token, run in groupby(self.tokens.get(int(index), self.unk_token) for index in ids):
            count = sum(1 for _ in run)
            if token != self.pad_token:
                shown = self.replace_word_delimiter_char if token == self.word_delimiter_token else token
                spans.append(Span(shown, frame, frame + count))
            frame += count
        return spans

    def words(self, characters: Sequence[Span]) -> list[Span]:
        """Characters joined to words, which end at delimiters."""
        runs = groupby(characters, key=lambda span: span.text != self.replace_word_delimiter_char)
        words = [list(run) for is_word, run in runs if is_word]
        return [Span("".join(span.text for span in run), run[0].start, run[-1].end) for run in words]

    def text(self, characters: Sequence[Span]) -> str:
        """Joins characters to a text without blanks at its ends, lowered and cleaned by the settings."""
        text = "".join(span.text for span in characters).strip()
        if self.do_lower_case:
            text = text.lower()
        if self.clean_up_tokenization_spaces:
            for ending in CLEANED:
                text = text.replace(ending, ending.strip())
        return text


def open_tokenizer(
    vocabulary: Mapping[str, Any], config: Mapping[str, Any], specials: Mapping[str, Any]
) -> CtcTokenizer:
    """The rules of vocab.json, tokenizer_config.json and special_tokens_map.json.

    Raises PosexportError for a tokenizer of another kind, and a vocabulary by languages without ``target_lang``.
    """
    named = config.get("tokenizer_class")
    if named not in CLASSES:
        raise PosexportError(
            f"tokenizer_config.json says tokenizer_class = {named}, and posexport decodes Wav2Vec2CTCTokenizer alone; "
            "take the output logits of Session.run"
        )
    if not vocabulary:
        raise PosexportError(
            "this bundle has no vocab.json, which says what the ids of its frames mean; convert it again from a "
            "checkpoint that has one, or take the output logits of Session.run"
        )
    tokens = {int(number): _content(entry) for number, entry in _added(config).items()}
    tokens |= {int(number): token for token, number in _of_language(vocabulary, config).items()}
    said: dict[str, Any] = {
        key: _content(stated)
        for key in ("pad_token", "unk_token", "word_delimiter_token", "replace_word_delimiter_char")
        if (stated := config.get(key, specials.get(key))) is not None
    }
    said |= {key: bool(config[key]) for key in ("do_lower_case", "clean_up_tokenization_spaces") if key in config}
    return CtcTokenizer(tokens=tokens, **said)


def remarks(config: Mapping[str, Any]) -> list[str]:
    """Sentences for what tokenizer_config.json says and a version of transformers leaves out."""
    delimiter = _content(config.get("word_delimiter_token", DELIMITER))
    if config.get("tokenizer_class") not in CLASSES[1:] or delimiter == DELIMITER:
        return []
    return [
        f"tokenizer_config.json says word_delimiter_token = {delimiter}: followed, as transformers 4.57 does; 5.24 "
        f"takes {DELIMITER} all the same"
    ]


def _of_language(vocabulary: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, int]:
    language = config.get("target_lang")
    nested = isinstance(next(iter(vocabulary.values())), Mapping)
    if not nested and language is None:
        return vocabulary
    if not isinstance(language, str) or not nested or language not in vocabulary:
        known = ", ".join(sorted(vocabulary)[:5]) if nested else "one vocabulary for all"
        raise PosexportError(
            f"tokenizer_config.json says target_lang = {language!r}, and vocab.json has {known}; set target_lang in "
            "the checkpoint and convert it again"
        )
    chosen: Mapping[str, int] = vocabulary[language]
    return chosen


def _added(config: Mapping[str, Any]) -> Mapping[str, Any]:
    added = config.get("added_tokens_decoder")
    return added if isinstance(added, Mapping) else {}


def _content(entry: Any) -> str:
    """A token that is written as a text or as an object with its text."""
    return str(entry["content"]) if isinstance(entry, Mapping) else str(entry)
