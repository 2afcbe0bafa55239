"""Replaces NaN by 0, and infinite scores by the largest and smallest finite values."""

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


def remove_invalid(scores_BV: Scores, _rows: TokenRows) -> Scores:
    finite_BV: Scores = np.nan_to_num(scores_BV, nan=0.0)
    return finite_BV


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return remove_invalid if options.remove_invalid_values else None
