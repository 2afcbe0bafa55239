"""Streaming detokenization: whole characters only, and nothing of a stop string.

A token may be a part of a character's UTF-8 bytes, and its text may depend on the previous token (a leading space).
"""

from collections.abc import Callable, Sequence

#: what incomplete UTF-8 bytes are decoded to
_UNFINISHED = "�"
#: maximum number of tokens to wait for the end of a character, which has at most four bytes
_HELD = 8


class Pieces:
    """The text of the tokens after ``prompt``, piece by piece; ``decode`` maps ids to text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt)
        #: start of the tokens of the last piece, and of the tokens that gave no text yet
        self._start, self._read = 0, len(self._ids)

    def push(self, token: int) -> str:
        """Add a token, and return the text that is complete; empty inside a character."""
        self._ids.append(token)
        return self._take(final=False)

    def finish(self) -> str:
        """The rest of the text: the bytes of an incomplete character."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        # decode with the previous tokens: alone, a token may lose its leading space
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
    """Passes on text up to the first stop string in ``texts``; holds back text that may begin one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self._held = ""
        #: a stop string occurred
        self.stopped = False

    def push(self, piece: str) -> str:
        """Add a piece, and return the text that is no part of a stop string."""
        if self.stopped:
            return ""
        text = self._held + piece
        starts = [start for start in (text.find(stop) for stop in self._texts) if start >= 0]
        if starts:
            self.stopped, self._held = True, ""
            return text[: min(starts)]
        sizes = (n for stop in self._texts for n in range(1, len(stop)) if text.endswith(stop[:n]))
        held = max(sizes, default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """The text that was held back."""
        held, self._held = self._held, ""
        return held
