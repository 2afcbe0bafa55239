"""Whisper's timestamp rules: timestamps come in pairs, never decrease, and start early.

Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv:2212.04356), section 4.5. A
timestamp is forced if timestamps together are more likely than each other token.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.run.generate.config import GenerationConfig
from posexport.run.logits.processor import Processor, Scores, Setting, Timestamps, TokenRows, log_softmax


@dataclass(frozen=True)
class WhisperTimestamps:
    tokens: Timestamps

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        first = self.tokens.first
        scores_BV = scores_BV.copy()
        scores_BV[:, first - 1] = -np.inf  # <|notimestamps|>
        for scores_V, new_N in zip(scores_BV, rows.new_BN, strict=True):
            self._pair(scores_V, new_N)
        if rows.new == 0:
            scores_BV[:, :first] = -np.inf
            if self.tokens.largest_initial is not None:
                scores_BV[:, first + self.tokens.largest_initial + 1 :] = -np.inf
        log_BV = log_softmax(scores_BV)
        with np.errstate(divide="ignore"):
            timestamp_B = np.log(np.exp(log_BV[:, first:]).sum(1))
        forced_B = timestamp_B > log_BV[:, :first].max(1)
        scores_BV[forced_B, :first] = -np.inf
        return scores_BV

    def _pair(self, scores_V: NDArray[Any], new_N: NDArray[np.int64]) -> None:
        """Forbid tokens that cannot follow the timestamps of one row."""
        first = self.tokens.first
        stamps_N = new_N >= first
        last, before = bool(stamps_N[-1:].all()) and len(new_N) > 0, len(new_N) < 2 or bool(stamps_N[-2])
        if last and before:
            scores_V[first:] = -np.inf
        elif last:
            scores_V[: self.tokens.eos] = -np.inf
        if stamps_N.any():
            latest = int(new_N[stamps_N][-1])
            # a segment may start where the previous one ends, but may not be empty
            scores_V[first : latest if last and not before else latest + 1] = -np.inf


def make(_options: GenerationConfig, setting: Setting) -> Processor | None:
    return None if setting.timestamps is None else WhisperTimestamps(setting.timestamps)
