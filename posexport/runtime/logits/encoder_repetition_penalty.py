"""Hallucination penalty: tokens of the encoder's input become likelier.

Scores below 0 are divided by the penalty, others multiplied with it; the inverse of Keskar et al.'s repetition penalty.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.repetition_penalty import penalized
from posexport.runtime.logits.token_rows import NONE, TokenRows


@dataclass(frozen=True)
class EncoderRepetitionPenalty:
    """``ids``: what the encoder reads, for each prompt, filled up with `NONE`."""

    penalty: float
    ids: np.ndarray

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return penalized(scores_BV, self.ids[rows.prompt_B], 1 / self.penalty)


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    penalty = options.encoder_repetition_penalty
    if penalty is None or penalty == 1 or not setting.context:
        return None
    ids = np.full((len(setting.context), max(map(len, setting.context))), NONE, np.int64)
    for row, context in zip(ids, setting.context, strict=True):
        row[: len(context)] = context
    return EncoderRepetitionPenalty(penalty, ids)
