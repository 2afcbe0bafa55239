"""Eta sampling: keeps tokens with a probability of at least min(eta, sqrt(eta) exp(-H)), H the entropy.

Hewitt et al., "Truncation Sampling as Language Model Desmoothing" (arXiv:2210.15191), section 4.2.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, log_softmax, truncate
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class Eta:
    eta: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        log_BV = log_softmax(scores_BV.astype(np.float64))
        p_BV = np.exp(log_BV)
        entropy_B1 = -(p_BV * np.where(p_BV > 0, log_BV, 0)).sum(-1, keepdims=True)
        least_B1 = np.minimum(self.eta, np.sqrt(self.eta) * np.exp(-entropy_B1))
        return truncate(scores_BV, p_BV >= least_B1, self.least)


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    return Eta(options.eta_cutoff, setting.least) if options.eta_cutoff else None
