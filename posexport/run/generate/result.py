"""What `posexport.Session.generate` returns, and the rules that it follows.

A token may be a part of a character's UTF-8 bytes, and its text may depend on the previous token (a leading space).

Sampling inverts the cumulative distribution over token ids, with one uniform random value per token. Equal scores and
seeds give equal tokens, whatever the batch size.

Shape letters: V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.generate.config import GenerationConfig
from posexport.run.logits.processor import NONE, Setting, softmax

Finish = Literal["stop", "length", "limit"]
#: a row, and new text of it; without a tokenizer, its new token
Piece = tuple[int, str | int]
Streamer = Callable[[int, Any], None]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What came after one prompt. ``text``: None without a tokenizer. ``prompt_tokens``: -1 for embeddings of no token.

    ``finish``: ``stop`` (a stop token, which is not among ``tokens``, or a stop text, which is not in ``text``),
    ``length`` (the most tokens that were requested) or ``limit`` (the model takes no more). ``score``: of beam search,
    the sum of the tokens' log-probabilities divided by a power of their number (``sequences_scores`` of transformers).
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str | None
    finish: Finish
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The completions of every prompt, and how long they took.

    With ``num_return_sequences`` the completions of one prompt follow each other. The prompt's time ends with the
    logits after it; ``step_tokens`` are the tokens of the steps after that. ``followed``: the options that the
    bundle's ``generation_config.json`` decided.
    """

    completions: list[Completion]
    prompt_tokens: int
    prompt_seconds: float
    step_tokens: int
    step_seconds: float
    followed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_rate(self) -> float:
        """Tokens of prompts read in a second, padding not counted."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def rate(self) -> float:
        """Tokens made in a second after the prompts were read, of all rows."""
        return self.step_tokens / self.step_seconds if self.step_seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class GenerationRules:
    """A `GenerationConfig` for one bundle: stop tokens and texts apart, and what logits processors know."""

    config: GenerationConfig = field(default_factory=GenerationConfig)
    stop_tokens: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    setting: Setting = field(default_factory=Setting)


#: what incomplete UTF-8 bytes are decoded to
_UNFINISHED = "�"
#: maximum number of tokens to wait for the end of a character, which has at most four bytes
_HELD = 8


class Pieces:
    """The text of the tokens after ``prompt``, piece by piece; ``decode`` maps ids to text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._ids = [token for token in prompt if token != NONE]
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
        """Returns the end of the text, which may have been the start of a stop string."""
        held, self._held = self._held, ""
        return held


NOT_NUMBERS = "the model's logits are not numbers (NaN); verify the bundle with posexport verify"


class Chooser:
    """Chooses the tokens of one row. Rows with equal prompts have different values of ``repeat``, so samples differ."""

    def __init__(self, *, samples: bool = False, seed: int = 0, repeat: int = 0) -> None:
        self._random = np.random.default_rng([seed, repeat]) if samples else None

    def __call__(self, scores_V: NDArray[Any]) -> int:
        """Return the next token; PosexportError if a score is NaN."""
        if np.isnan(scores_V).any():
            raise PosexportError(NOT_NUMBERS)
        if self._random is None:
            return int(np.argmax(scores_V))
        if np.isneginf(scores_V.max()):
            raise PosexportError(
                "every token is forbidden, so none can be drawn; give fewer options that forbid tokens"
            )
        return pick(softmax(scores_V.astype(np.float64)), self._random.random())


def pick(p_V: NDArray[Any], uniform: float) -> int:
    """The token at ``uniform`` (from 0 up to 1) of the cumulative distribution, ids ascending."""
    sums_V = np.cumsum(p_V)
    # the product may round up to the sum itself
    index = int(np.searchsorted(sums_V, uniform * sums_V[-1], side="right"))
    return min(index, int(np.flatnonzero(p_V)[-1]))
