"""Forbids tokens that would complete an n-gram of the encoder's input.

Used by BlenderBot: Roller et al., "Recipes for building an open-domain chatbot" (arXiv:2004.13637), section 4.2.
"""

from collections.abc import Sequence

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


class EncoderNoRepeatNGram:
    """``contexts``: the encoder's ids for each prompt."""

    def __init__(self, size: int, contexts: Sequence[Sequence[int]]) -> None:
        self._size = size
        self._ends: list[dict[tuple[int, ...], list[int]]] = []
        for ids in contexts:
            ends: dict[tuple[int, ...], list[int]] = {}
            for *before, last in zip(*(ids[start:] for start in range(size)), strict=False):
                ends.setdefault(tuple(before), []).append(last)
            self._ends.append(ends)

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        length = rows.ids_BS.shape[1]
        if length < self._size - 1:
            return scores_BV
        changed_BV = scores_BV.copy()
        ends = rows.ids_BS[:, length + 1 - self._size :].tolist()
        for changed_V, prompt, end in zip(changed_BV, rows.prompt_B, ends, strict=True):
            changed_V[self._ends[prompt].get(tuple(end), [])] = -np.inf
        return changed_BV


def make(options: GenerationConfig, setting: Setting) -> Processor | None:
    size = options.encoder_no_repeat_ngram_size
    return EncoderNoRepeatNGram(size, setting.context) if size and setting.context else None
