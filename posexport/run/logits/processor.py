"""Interface of logits processors, the token ids of a growing batch, and functions that they share.

Shape letters: B rows, S tokens so far, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError

#: padding of rows that are shorter or have ended
NONE = -1


class TokenRows:
    """Ids of prompts and new tokens, [B, S], padded on the left with `NONE`. All rows grow together.

    ``most``: maximum length of each row, [B]. ``prompt_B``: index of each row's prompt.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], most: Sequence[int]) -> None:
        self._width = max(map(len, prompts))
        self._new = 0
        self.begin_B = np.array([len(prompt) for prompt in prompts], np.int64)
        self.most_B = np.array(most, np.int64)
        self.prompt_B: NDArray[np.int64] = np.arange(len(prompts))
        room = self._width + int((self.most_B - self.begin_B).max(initial=0))
        self._ids = np.full((len(prompts), room), NONE, np.int64)
        for ids_S, prompt in zip(self._ids, prompts, strict=True):
            ids_S[self._width - len(prompt) : self._width] = prompt

    @property
    def ids_BS(self) -> NDArray[np.int64]:
        return self._ids[:, : self._width + self._new]

    @property
    def new(self) -> int:
        """Number of new tokens per row, equal for all rows."""
        return self._new

    @property
    def lengths_B(self) -> NDArray[np.int64]:
        """Number of tokens of each row, prompt included."""
        lengths: NDArray[np.int64] = self.begin_B + self._new
        return lengths

    @property
    def new_BN(self) -> NDArray[np.int64]:
        """Ids of the new tokens, [B, N]."""
        return self._ids[:, self._width : self._width + self._new]

    def append(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        self._ids[:, self._width + self._new] = tokens
        self._new += 1

    def take(self, rows: Sequence[int] | NDArray[Any]) -> None:
        """Select rows, in this order. A row may be selected several times."""
        index = np.asarray(rows)
        self._ids = self._ids[index]
        self.begin_B, self.most_B, self.prompt_B = self.begin_B[index], self.most_B[index], self.prompt_B[index]


#: logits or log-probabilities, [B, V]
Scores = NDArray[np.floating[Any]]


class Processor(Protocol):
    """Returns changed scores of the next token. Does not modify its arguments."""

    def __call__(self, scores_BV: Scores, rows: TokenRows, /) -> Scores: ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What logits processors are built from, in addition to the options.

    Attributes:
        eos: end tokens.
        context: ids of the encoder's input for each prompt; for a decoder, the prompt. Empty without ids.
        timestamps: Whisper's timestamp tokens, if timestamps are generated.
        beams: number of beams; 1 without beam search.
    """

    eos: tuple[int, ...] = ()
    context: Sequence[Sequence[int]] = ()
    timestamps: "Timestamps | None" = None
    beams: int = 1

    @property
    def least(self) -> int:
        """Minimum number of tokens that truncation keeps. With beams, one more than there are end tokens."""
        return 1 if self.beams == 1 else max(len(self.eos), 1) + 1


@dataclass(frozen=True)
class Timestamps:
    """Whisper's timestamp tokens: ``first`` is 0.00 s, lower ids are text and special tokens.

    ``largest_initial``: the last timestamp, counted from ``first``, that a completion may begin with.
    """

    first: int
    eos: int
    largest_initial: int | None = None


def without(scores_BV: Scores, tokens: NDArray[Any], rows_B: NDArray[np.bool_] | None = None) -> Scores:
    """Scores with minus infinity for ``tokens`` in the rows selected by ``rows_B``. Unknown ids are skipped."""
    tokens = tokens[(tokens >= 0) & (tokens < scores_BV.shape[1])]
    if not tokens.size or (rows_B is not None and not rows_B.any()):
        return scores_BV
    changed_BV = scores_BV.copy()
    if rows_B is None:
        changed_BV[:, tokens] = -np.inf
    else:
        changed_BV[np.ix_(rows_B, tokens)] = -np.inf
    return changed_BV


def only(scores_BV: Scores, tokens: Sequence[int], rows_B: NDArray[np.bool_]) -> Scores:
    """Scores with 0 for ``tokens`` and minus infinity for all others, in the rows selected by ``rows_B``.

    Raises:
        PosexportError: an id is outside the vocabulary.
    """
    if not rows_B.any():
        return scores_BV
    vocab = scores_BV.shape[1]
    if outside := [token for token in tokens if not 0 <= token < vocab]:
        raise PosexportError(f"a forced token has the id {outside[0]}; the model's ids are from 0 to {vocab - 1}")
    changed_BV = scores_BV.copy()
    changed_BV[rows_B] = -np.inf
    changed_BV[np.ix_(rows_B, np.array(tokens))] = 0.0
    return changed_BV


def log_softmax(scores_BV: Scores) -> Scores:
    """Log-probabilities of scores, row by row."""
    with np.errstate(under="ignore", over="ignore", divide="ignore", invalid="ignore"):
        shifted_BV = scores_BV - scores_BV.max(axis=-1, keepdims=True)
        log_BV: Scores = shifted_BV - np.log(np.exp(shifted_BV).sum(axis=-1, keepdims=True))
    return log_BV


def softmax(scores_BV: Scores) -> Scores:
    """Probabilities of scores, row by row."""
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        weights_BV = np.exp(scores_BV - scores_BV.max(axis=-1, keepdims=True))
        p_BV: Scores = weights_BV / weights_BV.sum(axis=-1, keepdims=True)
    return p_BV


def truncate(scores_BV: Scores, keep_BV: NDArray[np.bool_], least: int = 1) -> Scores:
    """Scores with minus infinity where ``keep_BV`` is False, except for the ``least`` best of each row."""
    largest_B1 = np.partition(scores_BV, -least, axis=-1)[:, -least][:, None] if least < scores_BV.shape[1] else -np.inf
    return np.where(keep_BV | (scores_BV >= largest_B1), scores_BV, -np.inf).astype(scores_BV.dtype, copy=False)
