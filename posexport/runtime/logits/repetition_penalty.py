"""Repetition penalty: scores of tokens that a row holds are divided by the penalty, negative ones multiplied with it.

Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation" (arXiv:1909.05858), section
4.1. Tokens of the prompt count, padding does not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class RepetitionPenalty:
    penalty: float

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return penalized(scores_BV, rows.ids_BS, self.penalty)


def penalized(scores_BV: Scores, ids_BS: NDArray[np.int64], penalty: float) -> Scores:
    """The scores of each row's ids divided by ``penalty``, negative ones multiplied with it."""
    row, place = np.nonzero((ids_BS >= 0) & (ids_BS < scores_BV.shape[1]))
    token = ids_BS[row, place]
    before = scores_BV[row, token]
    changed_BV = scores_BV.copy()
    changed_BV[row, token] = np.where(before < 0, before * penalty, before / penalty)
    return changed_BV


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    penalty = options.repetition_penalty
    return None if penalty is None or penalty == 1 else RepetitionPenalty(penalty)
