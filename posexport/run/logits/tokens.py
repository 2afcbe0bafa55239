"""Scores of named tokens and sequences: forbidden, or raised by a bias; and scores that are no numbers.

Shape letters: B rows, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.generate.config import GenerationConfig
from posexport.run.logits.processor import Processor, Scores, Setting, TokenRows, without


class BadWords:
    """``words``: lists of ids. Words that end outside the vocabulary, which may be pruned, are ignored."""

    def __init__(self, words: list[list[int]]) -> None:
        self._words = words
        self._bias: SequenceBias | None = None

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        if self._bias is None:
            known = [word for word in self._words if 0 <= word[-1] < scores_BV.shape[1]]
            self._bias = SequenceBias(known, [-float("inf")] * len(known))
        return self._bias(scores_BV, rows)


def make_bad_words(options: GenerationConfig, setting: Setting) -> Processor | None:
    words = [list(word) for word in options.bad_words_ids or ()]
    words = [word for word in words if len(word) > 1 or word[0] not in setting.eos]
    return BadWords(words) if words else None


@dataclass(frozen=True)
class BeginSuppress:
    tokens: NDArray[np.int64]
    forced_bos: bool

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        if rows.new > 1 or (rows.new == 1 and not self.forced_bos):
            return scores_BV
        forced_B = self.forced_bos & (rows.begin_B == 1)
        return without(scores_BV, self.tokens, rows.new == forced_B.astype(np.int64))


def make_begin_suppress(options: GenerationConfig, _setting: Setting) -> Processor | None:
    tokens = options.begin_suppress_tokens
    forced = options.forced_bos_token_id is not None
    return BeginSuppress(np.array(tokens, np.int64), forced) if tokens else None


@dataclass(frozen=True)
class Suppress:
    tokens: NDArray[np.int64]

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        return without(scores_BV, self.tokens)


def make_suppress(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return Suppress(np.array(options.suppress_tokens, np.int64)) if options.suppress_tokens else None


class SequenceBias:
    """Adds a bias to the score of a sequence's last token after rows that end with its other tokens."""

    def __init__(self, sequences: Sequence[Sequence[int]], biases: Sequence[float]) -> None:
        groups: dict[int, list[int]] = {}
        for number, sequence in enumerate(sequences):
            groups.setdefault(len(sequence) - 1, []).append(number)
        self._groups = [
            (
                count,
                np.array([sequences[number][:-1] for number in numbers], np.int64).reshape(len(numbers), count),
                np.array([sequences[number][-1] for number in numbers], np.int64),
                np.array([biases[number] for number in numbers]),
            )
            for count, numbers in groups.items()
        ]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        bias_BV = np.zeros_like(scores_BV)
        width = rows.ids_BS.shape[1]
        for count, before_GC, last_G, bias_G in self._groups:
            if count > width:
                continue
            end_BC = rows.ids_BS[:, width - count :]
            batch, number = np.nonzero((end_BC[:, None] == before_GC).all(-1))
            np.add.at(bias_BV, (batch, last_G[number]), bias_G[number].astype(bias_BV.dtype))
        return scores_BV + bias_BV


class _Checked:
    """A `SequenceBias` that raises PosexportError for ids outside the vocabulary."""

    def __init__(self, sequences: Sequence[Sequence[int]], biases: Sequence[float]) -> None:
        self._highest = max(max(ids) for ids in sequences)
        self._bias = SequenceBias(sequences, biases)

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        if self._highest >= scores_BV.shape[1]:
            raise PosexportError(
                f"sequence_bias holds the id {self._highest}; the model gives ids from 0 to {scores_BV.shape[1] - 1}"
            )
        return self._bias(scores_BV, rows)


def make_sequence_bias(options: GenerationConfig, _setting: Setting) -> Processor | None:
    if not options.sequence_bias:
        return None
    pairs = _pairs(options.sequence_bias)
    return _Checked([ids for ids, _ in pairs], [bias for _, bias in pairs])


def _pairs(stated: Any) -> list[tuple[list[int], float]]:
    """Sequences and their biases, from a list of pairs or a dict of tuples."""
    listed = stated.items() if isinstance(stated, Mapping) else stated
    try:
        pairs = [([int(token) for token in ids], float(bias)) for ids, bias in listed]
    except (TypeError, ValueError):
        pairs = [([], 0.0)]
    if any(not ids or min(ids) < 0 for ids, _ in pairs):
        raise PosexportError(
            f"sequence_bias must be a list of [token ids, bias], such as [[[5, 7], -2.0]], got {stated!r:.60}"
        )
    return pairs


def remove_invalid(scores_BV: Scores, _rows: TokenRows) -> Scores:
    finite_BV: Scores = np.nan_to_num(scores_BV, nan=0.0)
    return finite_BV


def make_remove_invalid(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return remove_invalid if options.remove_invalid_values else None
