"""Forbids end tokens until a row has ``min_length`` tokens, prompt included."""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, without
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class MinLength:
    length: int
    eos: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return without(scores_BV, np.array(self.eos), rows.lengths_B < self.length)


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    if not options.min_length or not setting.eos or options.min_new_tokens is not None:
        return None
    return MinLength(options.min_length, setting.eos)
