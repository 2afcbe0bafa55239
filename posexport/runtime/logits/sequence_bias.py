"""Bias of token sequences: the score of a sequence's last token grows by a bias where its other tokens come before.

Shape letters: B rows, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


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


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
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
