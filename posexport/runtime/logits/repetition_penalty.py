"""Repetition penalty: divides positive scores of a row's tokens by the penalty, and multiplies negative ones by it.

Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation" (arXiv:1909.05858), section
4.1. Includes tokens of the prompt, but not padding.
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
    """Apply the penalty to the scores of each row's ids."""
    batch, position = np.nonzero((ids_BS >= 0) & (ids_BS < scores_BV.shape[1]))
    token = ids_BS[batch, position]
    before = scores_BV[batch, token]
    changed_BV = scores_BV.copy()
    changed_BV[batch, token] = np.where(before < 0, before * penalty, before / penalty)
    return changed_BV


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    penalty = options.repetition_penalty
    return None if penalty is None or penalty == 1 else RepetitionPenalty(penalty)
