"""``Wav2Vec2FeatureExtractor``: raw samples, each sound with mean 0 and variance 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from posexport.audio.extractor import Arrays, Extractor, Sound, pad


@dataclass(frozen=True, kw_only=True)
class Wav2Vec2(Extractor):
    """Of wav2vec2, HuBERT, WavLM and their like.

    Attributes:
        do_normalize: mean 0 and variance 1 of each sound; without a mask, padding counts, as in transformers.
    """

    output: ClassVar[str] = "input_values"

    return_attention_mask: bool = False
    do_normalize: bool = True

    @property
    def shape(self) -> list[int | None]:
        return [None]

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        values, mask = pad(sounds, max(map(len, sounds)), self)
        if self.do_normalize:
            counted = mask.sum(1) if self.return_attention_mask else np.full(len(mask), mask.shape[1])
            for samples_T, count in zip(values, counted, strict=True):
                # the first ones also where padding is on the left: transformers does so
                samples_T[:] = (samples_T - samples_T[:count].mean()) / np.sqrt(samples_T[:count].var() + 1e-7)
                samples_T[count:] = self.padding_value
        return {self.output: values} | ({"attention_mask": mask} if self.return_attention_mask else {})
