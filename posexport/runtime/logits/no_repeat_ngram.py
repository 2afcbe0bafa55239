"""Forbids tokens that would complete an n-gram that the row already contains.

Paulus et al., "A Deep Reinforced Model for Abstractive Summarization" (arXiv:1705.04304), section 2.5.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


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


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return NoRepeatNGram(options.no_repeat_ngram_size) if options.no_repeat_ngram_size else None
