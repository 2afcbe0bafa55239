"""Penalties and bans for repeated tokens and n-grams, of the row or of the encoder's input.

Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation" (arXiv:1909.05858), section
4.1. Includes tokens of the prompt, but not padding.

Scores below 0 are divided by the penalty, others multiplied by it; the inverse of Keskar et al.'s repetition penalty.

Paulus et al., "A Deep Reinforced Model for Abstractive Summarization" (arXiv:1705.04304), section 2.5.

Used by BlenderBot: Roller et al., "Recipes for building an open-domain chatbot" (arXiv:2004.13637), section 4.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posexport.run.generate.config import GenerationConfig
from posexport.run.logits.processor import NONE, Processor, Scores, Setting, TokenRows


@dataclass(frozen=True)
class RepetitionPenalty:
    penalty: float

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return penalized(scores_BV, rows.ids_BS, self.penalty)


def penalized(scores_BV: Scores, ids_BS: NDArray[np.int64], penalty: float) -> Scores:
    """Apply the penalty to the scores of each row's ids."""
    batch, position = np.nonzero((ids_BS >= 0) & (ids_BS < scores_BV.shape[1]))
    token = ids_BS[batch, position]
    before = scores_BV[batch, token]
    changed_BV = scores_BV.copy()
    changed_BV[batch, token] = np.where(before < 0, before * penalty, before / penalty)
    return changed_BV


def make_repetition_penalty(options: GenerationConfig, _setting: Setting) -> Processor | None:
    penalty = options.repetition_penalty
    return None if penalty is None or penalty == 1 else RepetitionPenalty(penalty)


@dataclass(frozen=True)
class EncoderRepetitionPenalty:
    """``ids``: ids of the encoder's input, [prompts, length], padded with `NONE`."""

    penalty: float
    ids: np.ndarray

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return penalized(scores_BV, self.ids[rows.prompt_B], 1 / self.penalty)


def make_encoder_repetition_penalty(options: GenerationConfig, setting: Setting) -> Processor | None:
    penalty = options.encoder_repetition_penalty
    if penalty is None or penalty == 1 or not setting.context:
        return None
    ids = np.full((len(setting.context), max(map(len, setting.context))), NONE, np.int64)
    for ids_S, context in zip(ids, setting.context, strict=True):
        ids_S[: len(context)] = context
    return EncoderRepetitionPenalty(penalty, ids)


@dataclass(frozen=True)
class NoRepeatNGram:
    size: int

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        ids_BS = rows.ids_BS
        if ids_BS.shape[1] < self.size:
            return scores_BV
        windows_BWN = np.lib.stride_tricks.sliding_window_view(ids_BS, self.size, axis=1)
        end_BN = ids_BS[:, ids_BS.shape[1] + 1 - self.size :]
        last_BW = windows_BWN[..., -1]
        repeated_BW = (windows_BWN[..., :-1] == end_BN[:, None]).all(-1) & (windows_BWN[..., 0] >= 0)
        batch, window = np.nonzero(repeated_BW & (last_BW >= 0) & (last_BW < scores_BV.shape[1]))
        if not batch.size:
            return scores_BV
        changed_BV = scores_BV.copy()
        changed_BV[batch, last_BW[batch, window]] = -np.inf
        return changed_BV


def make_no_repeat_ngram(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return NoRepeatNGram(options.no_repeat_ngram_size) if options.no_repeat_ngram_size else None


class EncoderNoRepeatNGram:
    """``contexts``: the encoder's ids for each prompt."""

    def __init__(self, size: int, contexts: Sequence[Sequence[int]]) -> None:
        self._size = size
        self._ends: list[dict[tuple[int, ...], list[int]]] = []
        for ids in contexts:
            ends: dict[tuple[int, ...], list[int]] = {}
            for *before, last in zip(*(ids[start:] for start in range(size)), strict=False):
                ends.setdefault(tuple(before), []).append(last)
            self._ends.append(ends)

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        length = rows.ids_BS.shape[1]
        if length < self._size - 1:
            return scores_BV
        changed_BV = scores_BV.copy()
        ends = rows.ids_BS[:, length + 1 - self._size :].tolist()
        for changed_V, prompt, end in zip(changed_BV, rows.prompt_B, ends, strict=True):
            changed_V[self._ends[prompt].get(tuple(end), [])] = -np.inf
        return changed_BV


def make_encoder_no_repeat_ngram(options: GenerationConfig, setting: Setting) -> Processor | None:
    size = options.encoder_no_repeat_ngram_size
    return EncoderNoRepeatNGram(size, setting.context) if size and setting.context else None
