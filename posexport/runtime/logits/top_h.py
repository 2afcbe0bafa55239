"""Top-H: keeps the most likely tokens up to a share ``top_h`` of the distribution's entropy.

Potraghloo et al., "Top-H Decoding: Adapting the Creativity and Coherence with Bounded Entropy in Text Generation"
(arXiv:2509.02510). Considers the 100 most likely tokens, as transformers does.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, softmax
from posexport.runtime.logits.token_rows import TokenRows

MOST = 100


@dataclass(frozen=True)
class TopH:
    share: float

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        order_BK = np.argsort(-scores_BV, axis=-1, kind="stable")[:, :MOST]
        best_BK = np.take_along_axis(scores_BV, order_BK, -1)
        p_BK = softmax(best_BK.astype(np.float64))
        terms_BK = -p_BK * np.log(np.where(p_BK > 0, p_BK, 1))
        keep_BK = np.cumsum(terms_BK, -1) <= terms_BK.sum(-1, keepdims=True) * self.share
        keep_BK[:, 0] = True
        changed_BV = np.full_like(scores_BV, -np.inf)
        np.put_along_axis(changed_BV, order_BK, np.where(keep_BK, best_BK, -np.inf).astype(scores_BV.dtype), -1)
        return changed_BV


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return None if options.top_h is None else TopH(options.top_h)
