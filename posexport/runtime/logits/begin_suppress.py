"""Forbids tokens as the first new token, or as the second if ``forced_bos_token_id`` is the first."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, without
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class BeginSuppress:
    tokens: NDArray[np.int64]
    forced_bos: bool

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        if rows.new > 1 or (rows.new == 1 and not self.forced_bos):
            return scores_BV
        forced_B = self.forced_bos & (rows.begin_B == 1)
        return without(scores_BV, self.tokens, rows.new == forced_B.astype(np.int64))


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    tokens = options.begin_suppress_tokens
    forced = options.forced_bos_token_id is not None
    return BeginSuppress(np.array(tokens, np.int64), forced) if tokens else None
