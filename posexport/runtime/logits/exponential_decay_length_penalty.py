"""Raises the scores s of end tokens to s + |s| (factor^(n - start) - 1) after n > start new tokens."""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class ExponentialDecayLengthPenalty:
    start: int
    factor: float
    eos: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        beyond = rows.new - self.start
        if beyond <= 0:
            return scores_BV
        columns = [token for token in self.eos if 0 <= token < scores_BV.shape[1]]
        before = scores_BV[:, columns]
        finite = np.isfinite(before)
        grown = np.abs(np.where(finite, before, 0)) * (self.factor**beyond - 1)
        changed_BV = scores_BV.copy()
        changed_BV[:, columns] = before + grown.astype(before.dtype)
        return changed_BV


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    if options.exponential_decay_length_penalty is None or not setting.eos:
        return None
    start, factor = options.exponential_decay_length_penalty
    return ExponentialDecayLengthPenalty(int(start), factor, setting.eos)
