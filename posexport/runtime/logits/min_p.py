"""Min-p: keeps tokens at least ``min_p`` times as likely as the most likely one.

Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs" (arXiv:2407.01082).
"""

from dataclasses import dataclass

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, softmax, truncate
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class MinP:
    fraction: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        p_BV = softmax(scores_BV)
        return truncate(scores_BV, p_BV >= self.fraction * p_BV.max(-1, keepdims=True), self.least)


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    return None if options.min_p is None else MinP(options.min_p, setting.least)
