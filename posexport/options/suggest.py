"""Suggestions for mistyped words: the closest known word, if one is close enough."""

import difflib
from collections.abc import Iterable

from posexport.errors import PosexportError

#: share of letters that must agree: "convrt" is convert (0.92), "mamba" is not llama (0.6)
_CLOSE = 0.72


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to ``word``, ignoring case, ``-`` and ``_``; None if none is close.

    Example:
        >>> closest("relative_keys", ["relative-key", "rope"])
        'relative-key'
        >>> closest("mamba", ["llama"])
    """
    by_plain = {_plain(name): name for name in reversed(list(known))}
    matches = difflib.get_close_matches(_plain(word), by_plain, n=1, cutoff=_CLOSE)
    return by_plain[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean X?``, or ``otherwise`` if no word is close."""
    match = closest(word, known)
    return otherwise if match is None else f"did you mean {match}?"


def check_choice(what: str, value: object, known: Iterable[str]) -> None:
    """Raises PosexportError if ``value`` is not one of the known words."""
    words = list(known)
    if value not in words:
        hint = did_you_mean(str(value), words)
        raise PosexportError(f"{what} must be one of {', '.join(words)}, got {value!r}{hint and f'; {hint}'}")


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")
