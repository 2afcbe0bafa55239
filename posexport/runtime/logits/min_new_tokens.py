"""Forbids end tokens until there are ``min_new_tokens`` new tokens."""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, without
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class MinNewTokens:
    count: int
    eos: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return without(scores_BV, np.array(self.eos)) if rows.new < self.count else scores_BV


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    return MinNewTokens(options.min_new_tokens, setting.eos) if options.min_new_tokens and setting.eos else None
