"""Tokens to text as they come: no half of a character, and nothing of a stop text.

A token may hold a part of a character's bytes, and how it reads may depend on the one before (a space in front of it).
"""

from collections.abc import Callable, Sequence

#: what decoding gives for bytes that are no whole character
_UNFINISHED = "�"
#: as many tokens may wait for a character to be finished; one has at most four bytes
_HELD = 8


class Pieces:
    """The text of tokens after ``prompt``, piece by piece; ``decode`` gives the text of ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt)
        #: the last tokens that gave text start here, those that gave none yet there
        self._start, self._read = 0, len(self._ids)

    def push(self, token: int) -> str:
        """What is certain with one more token; empty inside a character."""
        self._ids.append(token)
        return self._take(final=False)

    def finish(self) -> str:
        """What was held back: bytes that no token finished."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        # decoded with what stands before: alone it may lose its space
        before = self._decode(self._ids[self._start : self._read])
        now = self._decode(self._ids[self._start :])
        if not final and now.endswith(_UNFINISHED) and len(self._ids) - self._read <= _HELD:
            return ""
        piece = now[len(before) :]
        if piece:
            self._start = self._read
        self._read = len(self._ids)
        return piece


class StopTexts:
    """Lets text through up to the first of ``texts``, and holds back what may become one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self._held = ""
        #: one of the texts came
        self.stopped = False

    def push(self, piece: str) -> str:
        """What is certain not to be part of a stop text."""
        if self.stopped:
            return ""
        text = self._held + piece
        places = [place for place in (text.find(stop) for stop in self._texts) if place >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        sizes = (n for stop in self._texts for n in range(1, len(stop)) if text.endswith(stop[:n]))
        held = max(sizes, default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back and did not become a stop text."""
        held, self._held = self._held, ""
        return held
