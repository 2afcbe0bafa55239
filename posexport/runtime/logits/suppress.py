"""Forbids tokens: for Whisper, symbols and descriptions of sounds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting, without
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class Suppress:
    tokens: NDArray[np.int64]

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        return without(scores_BV, self.tokens)


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return Suppress(np.array(options.suppress_tokens, np.int64)) if options.suppress_tokens else None
