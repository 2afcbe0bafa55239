"""Epsilon sampling: keeps tokens with at least a probability of ``epsilon_cutoff``.

Hewitt et al., "Truncation Sampling as Language Model Desmoothing" (arXiv:2210.15191), section 4.1.
"""

from dataclasses import dataclass

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, softmax, truncate
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class Epsilon:
    p: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        return truncate(scores_BV, softmax(scores_BV) >= self.p, self.least)


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    return Epsilon(options.epsilon_cutoff, setting.least) if options.epsilon_cutoff else None
