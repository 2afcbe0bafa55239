"""Top-p (nucleus) sampling: keeps the smallest set of most likely tokens with a total probability of p.

Holtzman et al., "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751), section 3.1. Among equally
likely tokens, higher ids are kept first, as in transformers.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, softmax
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class TopP:
    p: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        changed_BV = np.full_like(scores_BV, -np.inf)
        for changed_V, scores_V in zip(changed_BV, scores_BV, strict=True):
            possible = np.flatnonzero(scores_V > -np.inf)  # few, after top_k
            order = possible[np.argsort(scores_V[possible], kind="stable")]
            sums = np.cumsum(softmax(scores_V[order].astype(np.float64)[None])[0])
            keep = sums > 1 - self.p
            keep[-self.least :] = True
            changed_V[order[keep]] = scores_V[order[keep]]
        return changed_BV


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    return None if options.top_p is None or options.top_p >= 1 else TopP(options.top_p, setting.least)
