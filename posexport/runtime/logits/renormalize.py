"""Normalizes scores to log-probabilities, after all other processors."""

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, log_softmax
from posexport.runtime.logits.token_rows import TokenRows


def renormalize(scores_BV: Scores, _rows: TokenRows) -> Scores:
    return log_softmax(scores_BV)


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return renormalize if options.renormalize_logits else None
