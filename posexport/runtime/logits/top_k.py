"""Top-k: keeps tokens at least as likely as the k-th most likely one.

Fan et al., "Hierarchical Neural Story Generation" (arXiv:1805.04833), section 5.4.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import TOP_K, GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class TopK:
    count: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        if self.count >= scores_BV.shape[1]:
            return scores_BV
        least_B1 = np.partition(scores_BV, -self.count, axis=-1)[:, -self.count][:, None]
        changed_BV: Scores = np.where(scores_BV < least_B1, -np.inf, scores_BV).astype(scores_BV.dtype)
        return changed_BV


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    count = TOP_K if options.top_k is None else options.top_k
    return TopK(max(count, setting.least)) if count else None
