"""Hallucination penalty: raises the scores of tokens of the encoder's input.

Scores below 0 are divided by the penalty, others multiplied by it; the inverse of Keskar et al.'s repetition penalty.
"""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.repetition_penalty import penalized
from posexport.runtime.logits.token_rows import NONE, TokenRows


@dataclass(frozen=True)
class EncoderRepetitionPenalty:
    """``ids``: ids of the encoder's input, [prompts, length], padded with `NONE`."""

    penalty: float
    ids: np.ndarray

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return penalized(scores_BV, self.ids[rows.prompt_B], 1 / self.penalty)


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    penalty = options.encoder_repetition_penalty
    if penalty is None or penalty == 1 or not setting.context:
        return None
    ids = np.full((len(setting.context), max(map(len, setting.context))), NONE, np.int64)
    for ids_S, context in zip(ids, setting.context, strict=True):
        ids_S[: len(context)] = context
    return EncoderRepetitionPenalty(penalty, ids)
