"""Whisper's text tokens as words with times, as transformers' ``_combine_tokens_into_words`` joins them."""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

#: languages without spaces between words
_WITHOUT_SPACES = {"chinese", "japanese", "thai", "lao", "myanmar", "cantonese"}
#: what belongs to the next word, and what to the one before
_BEFORE, _AFTER = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 (as the library has them)
#: tokens of an incomplete character decode to it
_INCOMPLETE = "\ufffd"


class TimedToken(NamedTuple):
    """A token and the seconds at which it begins and ends; without times both are 0."""

    token: int
    span: tuple[float, float] = (0.0, 0.0)


@dataclass
class _Word:
    text: str
    spans: list[tuple[float, float]]


def words(
    tokens: Sequence[TimedToken], decode: Callable[[list[int]], str], language: str, first_special: int
) -> list[dict[str, Any]]:
    """``text`` and ``timestamp`` of each word. ``first_special``: ids from here on are separate words."""
    pieces = _characters(tokens, decode)
    if language not in _WITHOUT_SPACES:
        pieces = _at_spaces(pieces, first_special)
    parts = [_Word(text, [one.span for one in some]) for text, some in pieces]
    _merge_punctuation(parts)
    return [{"text": w.text, "timestamp": (w.spans[0][0], w.spans[-1][1])} for w in parts if w.text]


_Piece = tuple[str, list[TimedToken]]


def _characters(tokens: Sequence[TimedToken], decode: Callable[[list[int]], str]) -> list[_Piece]:
    """Tokens grouped by characters: several tokens may be the bytes of one."""
    whole = decode([one.token for one in tokens])
    pieces: list[_Piece] = []
    waiting: list[TimedToken] = []
    offset = 0
    for one in tokens:
        waiting.append(one)
        text = decode([byte.token for byte in waiting])
        place = offset + text.find(_INCOMPLETE)
        # the whole text may have the replacement character itself
        if _INCOMPLETE not in text or place >= len(whole) or whole[place] == _INCOMPLETE:
            pieces.append((text, waiting))
            waiting = []
            offset += len(text)
    return pieces


def _at_spaces(pieces: Sequence[_Piece], first_special: int) -> list[_Piece]:
    """Pieces joined up to the next space or punctuation."""
    joined: list[_Piece] = []
    for text, some in pieces:
        alone = some[0].token >= first_special or text.startswith(" ") or text.strip() in string.punctuation
        if alone or not joined:
            joined.append((text, list(some)))
        else:
            before, tokens = joined[-1]
            joined[-1] = (before + text, tokens + some)
    return joined


def _merge_punctuation(parts: list[_Word]) -> None:
    """Append opening punctuation to the word after it, then closing punctuation to the one before; in place."""
    following = len(parts) - 1
    for number in range(len(parts) - 2, -1, -1):
        word, after = parts[number], parts[following]
        if word.text.startswith(" ") and word.text.strip() in _BEFORE:
            after.text, after.spans = word.text + after.text, word.spans + after.spans
            word.text, word.spans = "", []
        else:
            following = number
    preceding = 0
    for number in range(1, len(parts)):
        word, before = parts[number], parts[preceding]
        if not before.text.endswith(" ") and word.text in _AFTER:
            before.text, before.spans = before.text + word.text, before.spans + word.spans
            word.text, word.spans = "", []
        else:
            preceding = number
