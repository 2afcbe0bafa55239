"""Divides scores by the temperature; below 1 the distribution becomes sharper."""

from dataclasses import dataclass

import numpy as np

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows


@dataclass(frozen=True)
class Temperature:
    temperature: float

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        scaled_BV: Scores = scores_BV.astype(np.float64) / self.temperature  # float32 would overflow
        return scaled_BV


def make(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return None if options.temperature in (None, 0, 1) else Temperature(options.temperature)
