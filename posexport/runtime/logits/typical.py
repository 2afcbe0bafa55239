"""Locally typical sampling: keeps tokens with information content closest to the entropy, up to probability p.

Meister et al., "Locally Typical Sampling" (arXiv:2202.00666), section 4.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, log_softmax
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class Typical:
    p: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        log_BV = log_softmax(scores_BV.astype(np.float64))
        p_BV = np.exp(log_BV)
        entropy_B1 = -(p_BV * np.where(p_BV > 0, log_BV, 0)).sum(-1, keepdims=True)
        distance_BV = np.abs(-log_BV - entropy_B1)
        order_BV = np.argsort(distance_BV, axis=-1, kind="stable")
        sorted_BV = np.take_along_axis(distance_BV, order_BV, -1)
        sums_BV = np.cumsum(np.take_along_axis(p_BV, order_BV, -1), -1)
        last_B1 = np.minimum((sums_BV < self.p).sum(-1, keepdims=True), scores_BV.shape[1] - 1)
        keep_BV = sorted_BV <= np.take_along_axis(sorted_BV, last_B1, -1)
        keep_BV[:, : self.least] = True
        changed_BV = np.full_like(scores_BV, -np.inf)
        chosen_BV = np.where(keep_BV, np.take_along_axis(scores_BV, order_BV, -1), -np.inf)
        np.put_along_axis(changed_BV, order_BV, chosen_BV.astype(scores_BV.dtype), -1)
        return changed_BV


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    return None if options.typical_p is None or options.typical_p >= 1 else Typical(options.typical_p, setting.least)
